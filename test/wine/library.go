package wine

import (
	"bytes"
	"encoding/binary"
)

// library returns the file of a 64-bit Windows library with one function, which forwards to one of
// another library ("library.function"). It has no code: its export table has the forwarder. The
// layout is that of Microsoft's "PE Format".
func library(name, function, forward string) []byte {
	const (
		section   = 0x1000 // where the table is in memory
		inFile    = 0x200  // and in the file
		directory = 40     // its length
	)
	var table bytes.Buffer
	texts := uint32(section + directory + 4 + 4 + 2)
	// one function, from number 1 on
	put(&table, uint32(0), uint32(0), uint32(0), texts, uint32(1), uint32(1), uint32(1))
	put(&table, uint32(section+directory), uint32(section+directory+4), uint32(section+directory+8))
	// where it is, its name, its number
	put(&table, texts+uint32(len(name)+1+len(function)+1), texts+uint32(len(name)+1), uint16(0))
	for _, text := range []string{name, function, forward} {
		table.WriteString(text + "\x00")
	}
	size := uint32(table.Len())

	var file bytes.Buffer
	file.WriteString("MZ")
	file.Write(make([]byte, 58))
	put(&file, uint32(64))
	file.WriteString("PE\x00\x00")
	// amd64, one section, a library
	put(&file, uint16(0x8664), uint16(1), uint32(0), uint32(0), uint32(0), uint16(240), uint16(0x2022))
	put(&file, uint16(0x20b), uint16(0), uint32(0), uint32(inFile), uint32(0), uint32(0), uint32(0))
	put(&file, uint64(0x180000000), uint32(section), uint32(inFile))
	put(&file, uint16(6), uint16(0), uint16(0), uint16(0), uint16(6), uint16(0), uint32(0)) // Windows 6.0 and later
	put(&file, uint32(2*section), uint32(inFile), uint32(0), uint16(3), uint16(0x100))
	put(&file, uint64(1<<20), uint64(1<<12), uint64(1<<20), uint64(1<<12), uint32(0), uint32(16))
	put(&file, uint32(section), size)
	file.Write(make([]byte, 15*8)) // the other tables
	file.WriteString(".rdata\x00\x00")
	put(&file, size, uint32(section), uint32(inFile), uint32(inFile), uint32(0), uint32(0), uint16(0), uint16(0),
		uint32(0x40000040))
	file.Write(make([]byte, inFile-file.Len()))
	file.Write(table.Bytes())
	file.Write(make([]byte, 2*inFile-file.Len()))
	return file.Bytes()
}

func put(to *bytes.Buffer, values ...any) {
	for _, v := range values {
		_ = binary.Write(to, binary.LittleEndian, v) // a buffer takes all
	}
}
