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
	for {
		field, length, err := protobufField(in)
		switch {
		case errors.Is(err, io.EOF) && found:
			return meta, nil
		case err != nil:
		case field == unknownRaw:
			found = true
			meta, err = decodeRawList(&io.LimitedReader{R: in, N: length}, r, take)
		default:
			_, err = io.CopyN(io.Discard, in, length)
		}
		if err != nil {
			return meta, err
		}
	}
}

// decodeRawList reads the list itself, which ends where raw ends.
func decodeRawList(raw *io.LimitedReader, r *resource, take func(apiObject)) (meta metav1.ListMeta, err error) {
	in := bufio.NewReaderSize(raw, 64<<10)
	var buf []byte
	object := r.new()
	for {
		field, length, err := protobufField(in)
		if errors.Is(err, io.EOF) {
			if raw.N > 0 { // the connection ended, not the list
				return meta, io.ErrUnexpectedEOF
			}
			return meta, nil
		}
		if err != nil {
			return meta, err
		}
		if length > maxBytes {
			return meta, fmt.Errorf("field %d claims to have %d bytes", field, length)
		}
		if int64(cap(buf)) < length {
			buf = make([]byte, length+length/4)
		}
		buf = buf[:length]
		if _, err := io.ReadFull(in, buf); err != nil {
			return meta, unexpected(err)
		}
		switch field {
		case listMetadata:
			if err := meta.Unmarshal(buf); err != nil {
				return meta, err
			}
		case listItems:
			object.Reset()
			if err := object.Unmarshal(buf); err != nil {
				return meta, err
			}
			take(object)
		}
	}
}

// protobufField reads the head of a field that has a length. io.EOF means no further field.
func protobufField(in *bufio.Reader) (field uint64, length int64, err error) {
	const lengthDelimited = 2
	tag, err := binary.ReadUvarint(in)
	if err != nil {
		return 0, 0, err
	}
	if tag&7 != lengthDelimited {
		return 0, 0, fmt.Errorf("field %d has the wire type %d", tag>>3, tag&7)
	}
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return 0, 0, unexpected(err)
	}
	if n > 1<<40 {
		return 0, 0, fmt.Errorf("field %d claims to have %d bytes", tag>>3, n)
	}
	return tag >> 3, int64(n), nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeJSON reads {"metadata": {...}, "items": [...]}.
func decodeJSON(in io.Reader, r *resource, take func(apiObject)) (meta metav1.ListMeta, err error) {
	dec := json.NewDecoder(in)
	if err := expect(dec, json.Delim('{')); err != nil {
		return meta, err
	}
	found := false
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return meta, err
		}
		switch key {
		case "metadata":
			found = true
			err = dec.Decode(&meta)
		case "items":
			err = decodeJSONItems(dec, r, take)
		default:
			var skip json.RawMessage
			err = dec.Decode(&skip)
		}
		if err != nil {
			return meta, err
		}
	}
	if !found {
		return meta, errors.New("it has no metadata")
	}
	return meta, expect(dec, json.Delim('}'))
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
	return expect(dec, json.Delim(']'))
}

func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v is expected", got, want)
	}
	return err
}
