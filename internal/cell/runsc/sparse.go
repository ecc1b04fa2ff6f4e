package runsc

import (
	"archive/tar"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const blockSize = 512

// sparse writes a file with holes in the format PAX sparse 1.0, which [archive/tar] can
// read but not write.
func (t *treeWriter) sparse(h *tar.Header, pieces []piece, stored int64) error {
	var table bytes.Buffer
	// An empty piece at the end gives the size to readers that use the table only.
	fmt.Fprintf(&table, "%d\n", len(pieces)+1)
	for _, p := range pieces {
		fmt.Fprintf(&table, "%d\n%d\n", p.Start, p.End-p.Start)
	}
	fmt.Fprintf(&table, "%d\n0\n", h.Size)
	pad(&table)
	records := map[string]string{
		"GNU.sparse.major":    "1",
		"GNU.sparse.minor":    "0",
		"GNU.sparse.name":     h.Name,
		"GNU.sparse.realsize": strconv.FormatInt(h.Size, 10),
		"size":                strconv.FormatInt(int64(table.Len())+stored, 10),
		"uid":                 strconv.Itoa(h.Uid),
		"gid":                 strconv.Itoa(h.Gid),
		"mtime":               strconv.FormatInt(h.ModTime.Unix(), 10),
	}
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, "SCHILY.xattr.") {
			records[k] = v
		}
	}
	pax := paxRecords(records)
	var head bytes.Buffer
	head.Write(rawHeader(tar.TypeXHeader, 0o644, int64(len(pax))))
	head.WriteString(pax)
	pad(&head)
	// The size may not fit the header's field; the one in the PAX records applies.
	head.Write(rawHeader(tar.TypeReg, h.Mode, min(int64(table.Len())+stored, 1<<33-1)))
	head.Write(table.Bytes())
	if _, err := t.w.Write(head.Bytes()); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := t.piece(t.w, p); err != nil {
			return err
		}
	}
	return t.zeros(t.w, -stored&(blockSize-1))
}

// paxRecords encodes the records of an extended header, sorted. Each starts with its own
// length.
func paxRecords(records map[string]string) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(records)) {
		rest := " " + k + "=" + records[k] + "\n"
		n := len(rest) + 1
		for len(strconv.Itoa(n))+len(rest) != n {
			n = len(strconv.Itoa(n)) + len(rest)
		}
		out.WriteString(strconv.Itoa(n) + rest)
	}
	return out.String()
}

// rawHeader returns the header block of an entry whose name, owner and time are in an
// extended header.
func rawHeader(typeflag byte, mode, size int64) []byte {
	b := make([]byte, blockSize)
	copy(b, "sparse")
	copy(b[100:], fmt.Sprintf("%07o\x00", mode&0o7777))
	copy(b[108:], "0000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	copy(b[136:], "00000000000\x00")
	copy(b[148:], "        ")
	b[156] = typeflag
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func pad(b *bytes.Buffer) {
	b.Write(make([]byte, -b.Len()&(blockSize-1)))
}
