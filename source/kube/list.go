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
	for {
		field, length, err := protobufField(in)
		if err == nil && field == unknownRaw {
			return decodeRawList(&io.LimitedReader{R: in, N: length}, r, take)
		}
		if err == nil {
			_, err = in.Discard(int(length))
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

// decodeJSON reads a list in JSON, which it holds as text: servers send it only on request.
func decodeJSON(in io.Reader, r *resource, take func(apiObject)) (metav1.ListMeta, error) {
	var list struct {
		Metadata metav1.ListMeta
		Items    []json.RawMessage
	}
	err := json.NewDecoder(in).Decode(&list)
	for _, item := range list.Items {
		object := r.new()
		if err == nil {
			err = json.Unmarshal(item, object)
		}
		if err == nil {
			take(object)
		}
	}
	return list.Metadata, err
}
