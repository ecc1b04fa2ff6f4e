package terms

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"

	"github.com/cove-sh/cove/sandbox"
)

// archiveRoot returns the name of the root directory in an archive of dir.
func archiveRoot(dir string) string {
	if base := path.Base(path.Clean("/" + dir)); base != "/" {
		return base
	}
	return "root"
}

// Rearchive rewrites a zip file of a directory as the product writes it: below the
// directory's name, so that two archives unpack side by side, and without symbolic links.
func Rearchive(out io.Writer, dir string, data io.ReaderAt, size int64) error {
	if err := checkDirectory(data, size); err != nil {
		return err
	}
	in, err := zip.NewReader(data, size)
	if err != nil {
		return damaged(err)
	}
	w := zip.NewWriter(out)
	left := uint64(size)
	for _, f := range in.File {
		// Entries of an intact archive do not overlap.
		if f.CompressedSize64 > left {
			return damaged(errors.New("its entries are larger than the archive"))
		}
		left -= f.CompressedSize64
		if f.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		header := f.FileHeader
		header.Name = archiveRoot(dir) + "/" + f.Name
		raw, err := f.OpenRaw()
		if err != nil {
			return damaged(err)
		}
		entry, err := w.CreateRaw(&header)
		if err == nil {
			_, err = io.Copy(entry, raw)
		}
		if err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// maxDirectory bounds the archive's central directory, in bytes: each record takes several
// times as much memory when read, and a program running as the agent may have made the
// archive. 100,000 files take about 10 MB.
const maxDirectory = 16 << 20

// checkDirectory refuses an archive whose central directory is too large to read. The
// layout is that of APPNOTE.TXT 4.3.14 to 4.3.16.
func checkDirectory(data io.ReaderAt, size int64) error {
	const end, locator, end64 = 22, 20, 56
	tail := make([]byte, min(size, locator+end+math.MaxUint16))
	if _, err := data.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return damaged(err)
	}
	at := bytes.LastIndex(tail, []byte("PK\x05\x06"))
	if at < 0 || len(tail)-at < end {
		return damaged(zip.ErrFormat)
	}
	length := uint64(binary.LittleEndian.Uint32(tail[at+12:]))
	if length == math.MaxUint32 {
		if at < locator || !bytes.HasPrefix(tail[at-locator:], []byte("PK\x06\x07")) {
			return damaged(zip.ErrFormat)
		}
		where := binary.LittleEndian.Uint64(tail[at-locator+8:])
		record := make([]byte, end64)
		if where > uint64(size) {
			return damaged(zip.ErrFormat)
		}
		if _, err := data.ReadAt(record, int64(where)); err != nil {
			return damaged(err)
		}
		length = binary.LittleEndian.Uint64(record[40:])
	}
	if length > maxDirectory {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the directory has too many files for an archive; make one in the sandbox, or archive its parts")
	}
	return nil
}

func damaged(err error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the archive from the sandbox is damaged; try again")
}
