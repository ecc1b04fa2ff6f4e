package terms

import (
	"archive/zip"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/cove-sh/cove/sandbox"
)

// archiveRoot is the name of the root directory in an archive of dir.
func archiveRoot(dir string) string {
	if base := path.Base(path.Clean("/" + dir)); base != "/" {
		return base
	}
	return "root"
}

// Rearchive writes the contents of a zip file of a directory as the product does:
// below the directory's name, so that two archives unpack beside each other, and
// without symbolic links.
func Rearchive(out io.Writer, dir string, data io.ReaderAt, size int64) error {
	in, err := zip.NewReader(data, size)
	if err != nil {
		return damaged(err)
	}
	w := zip.NewWriter(out)
	for _, f := range in.File {
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

func damaged(err error) error {
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the archive from the sandbox is damaged; try again")
}
