package kube

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decodeList reads a LIST's answer and gives each object to take while the answer still arrives;
// the object must not be kept, it is used again. A LIST that is decoded as a whole would hold every
// API object at once, because servers may ignore the limit of a page.
func decodeList(body io.Reader, r *resource, take func(apiObject)) (metav1.ListMeta, error) {
	in := bufio.NewReaderSize(body, 64<<10)
	magic, err := in.Peek(len(protobufMagic))
	var meta metav1.ListMeta
	if err == nil && string(magic) == protobufMagic {
		meta, err = decodeProtobuf(in, r, take)
	} else {
		meta, err = decodeJSON(in, r, take)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return meta, fmt.Errorf("kube: decode the list of %s: %w", r.plural, err)
	}
	return meta, nil
}

// protobufMagic is what the API's protobuf encoding begins with. A message of type runtime.Unknown
// follows, whose field raw is the encoded list.
const protobufMagic = "k8s\x00"

// The numbers of the fields that are read. They are part of the API.
const (
	unknownRaw   = 2
	listMetadata = 1
	listItems    = 2
)

// maxBytes bounds what one field may claim to hold; etcd holds no object as large.
const maxBytes = 64 << 20

func decodeProtobuf(in *bufio.Reader, r *resource, take func(apiObject)) (meta metav1.ListMeta, err error) {
	if _, err := in.Discard(len(protobufMagic)); err != nil {
		return meta, err
	}
	found := false
	err = eachField(in, func(field uint64, content *io.LimitedReader) (err error) {
		if field == unknownRaw {
			found = true
			meta, err = decodeRawList(content, r, take)
		}
		return err
	})
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	return meta, err
}

// decodeRawList reads the list itself.
func decodeRawList(raw io.Reader, r *resource, take func(apiObject)) (meta metav1.ListMeta, err error) {
	var buf []byte
	object := r.new()
	err = eachField(bufio.NewReaderSize(raw, 64<<10), func(field uint64, content *io.LimitedReader) error {
		length := content.N
		if length > maxBytes {
			return fmt.Errorf("field %d claims to have %d bytes", field, length)
		}
		if int64(cap(buf)) < length {
			buf = make([]byte, length+length/4)
		}
		buf = buf[:length]
		if _, err := io.ReadFull(content, buf); err != nil {
			return err
		}
		switch field {
		case listMetadata:
			return meta.Unmarshal(buf)
		case listItems:
			object.Reset()
			if err := object.Unmarshal(buf); err != nil {
				return err
			}
			take(object)
		}
		return nil
	})
	return meta, err
}

// eachField gives each field of a message to take, which need not read all of its content. All
// fields of a list have a length.
func eachField(in *bufio.Reader, take func(field uint64, content *io.LimitedReader) error) error {
	const lengthDelimited = 2
	content := io.LimitedReader{R: in}
	for {
		tag, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if tag&7 != lengthDelimited {
			return fmt.Errorf("field %d has the wire type %d", tag>>3, tag&7)
		}
		n, err := binary.ReadUvarint(in)
		if err != nil {
			return err
		}
		if n > 1<<40 {
			return fmt.Errorf("field %d claims to have %d bytes", tag>>3, n)
		}
		content.N = int64(n)
		if err := take(tag>>3, &content); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, &content); err != nil {
			return err
		}
		if content.N > 0 { // the connection ended, not the field
			return io.ErrUnexpectedEOF
		}
	}
}

// decodeJSON reads {"metadata": {...}, "items": [...]}.
func decodeJSON(in io.Reader, r *resource, take func(apiObject)) (meta metav1.ListMeta, err error) {
	dec, found := json.NewDecoder(in), false
	for err = expect(dec, '{'); err == nil && dec.More(); {
		key, keyErr := dec.Token()
		switch {
		case keyErr != nil:
			err = keyErr
		case key == "metadata":
			found, err = true, dec.Decode(&meta)
		case key == "items":
			err = decodeJSONItems(dec, r, take)
		default:
			err = dec.Decode(&json.RawMessage{}) // ignored
		}
	}
	switch {
	case err != nil:
		return meta, err
	case !found:
		return meta, errors.New("it has no metadata")
	}
	return meta, expect(dec, '}')
}

func decodeJSONItems(dec *json.Decoder, r *resource, take func(apiObject)) error {
	first, err := dec.Token()
	if err != nil || first == nil { // "items": null
		return err
	}
	if first != json.Delim('[') {
		return fmt.Errorf("items begins with %v", first)
	}
	for dec.More() {
		object := r.new()
		if err := dec.Decode(object); err != nil {
			return err
		}
		take(object)
	}
	return expect(dec, ']')
}

func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v is expected", got, want)
	}
	return err
}
