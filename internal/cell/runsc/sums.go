package runsc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// SumsFile is the file of a checkpoint with the checksum of each page in [PagesFile]: the
// CRC-32C in four bytes, little-endian. It detects damage, not manipulation. Pages beyond
// its end have no checksum.
const SumsFile = "pages_sums.img"

// ErrPages means that pages of a checkpoint differ from what was written.
var ErrPages = errors.New("pages of the checkpoint are damaged")

// asLoadedBytes is the least size of pages that are checked as they are loaded. Fewer
// pages are checked before, which takes less time than the start of a sandbox.
const asLoadedBytes = 32 << 20

// sumBlock is the number of bytes that are read and checked at a time.
const sumBlock = 4 << 20

const sumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SumPages writes [SumsFile] for the first n bytes of a checkpoint's pages, and syncs the
// pages to the disk meanwhile.
func SumPages(dir string, n int64) error {
	f, err := os.Open(filepath.Join(dir, PagesFile))
	if err != nil {
		return err
	}
	defer f.Close()
	if n%pageSize != 0 {
		return fmt.Errorf("%d bytes are not whole pages", n)
	}
	sums := make([]byte, n/pageSize*sumSize)
	var g errgroup.Group
	g.Go(f.Sync)
	err = eachBlock(f, n, func(block []byte, at int64) error {
		for i := 0; i < len(block); i += pageSize {
			binary.LittleEndian.PutUint32(sums[(at+int64(i))/pageSize*sumSize:], crc32.Checksum(block[i:i+pageSize], castagnoli))
		}
		return nil
	})
	if err := errors.Join(err, g.Wait()); err != nil {
		return fmt.Errorf("sum up pages: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, SumsFile), sums, 0o600)
}

// eachBlock reads the first n bytes of a file in blocks, several at a time.
func eachBlock(f io.ReaderAt, n int64, do func(block []byte, at int64) error) error {
	var g errgroup.Group
	workers := int64(min(4, runtime.GOMAXPROCS(0)))
	for first := range workers {
		g.Go(func() error {
			buf := make([]byte, min(sumBlock, n))
			for at := first * sumBlock; at < n; at += workers * sumBlock {
				block := buf[:min(sumBlock, n-at)]
				if _, err := f.ReadAt(block, at); err != nil {
					return err
				}
				if err := do(block, at); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// CheckPages compares the pages of a checkpoint with [SumsFile], if it has one. The error
// is [ErrPages] if a page does not match.
func CheckPages(dir string) error {
	sums, err := readSums(dir)
	if err != nil || sums == nil {
		return err
	}
	f, err := os.Open(filepath.Join(dir, PagesFile))
	if err != nil {
		return err
	}
	defer f.Close()
	return eachBlock(f, int64(len(sums))/sumSize*pageSize, sums.check)
}

// ChecksAsLoaded reports whether [Sandbox.Restore] checks the pages of a checkpoint as it
// loads them, so that they need not be checked before.
func ChecksAsLoaded(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, SumsFile))
	return err == nil && info.Size()/sumSize*pageSize >= asLoadedBytes
}

// pageSums is the content of [SumsFile].
type pageSums []byte

// readSums returns the checksums of a checkpoint's pages, or nil if it has none.
func readSums(dir string) (pageSums, error) {
	sums, err := os.ReadFile(filepath.Join(dir, SumsFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(sums)%sumSize != 0 {
		err = fmt.Errorf("%w: checksums of %d bytes", ErrPages, len(sums))
	}
	return sums, err
}

// check checks whole pages, which start at the offset at of the file of pages.
func (s pageSums) check(pages []byte, at int64) error {
	if at%pageSize != 0 || len(pages)%pageSize != 0 {
		return fmt.Errorf("%w: %d bytes at %d are not whole pages", ErrPages, len(pages), at)
	}
	for i := 0; i < len(pages); i += pageSize {
		n := (at + int64(i)) / pageSize * sumSize
		if n >= int64(len(s)) {
			return nil
		}
		if crc32.Checksum(pages[i:i+pageSize], castagnoli) != binary.LittleEndian.Uint32(s[n:]) {
			return fmt.Errorf("%w: the one at %d", ErrPages, at+int64(i))
		}
	}
	return nil
}
