package runsc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/runsc/boot"
)

// The files with what a sandbox has changed above its root. With [CheckpointFiles], the
// pages of the changed files are in [PagesFile]; otherwise they are in FilesPages.
const (
	// FilesTree is gVisor's tree of the changed files, compressed.
	FilesTree = "files_tree.tar.zst"
	// FilesTable is gVisor's table of the pages with the contents of these files.
	FilesTable = "files_table.img"
	// FilesPages is these pages in order, compressed.
	FilesPages = "files_pages.img.zst"
)

// maxTableBytes limits a table of pages: 64 MiB describe over a million fragments.
const maxTableBytes = 64 << 20

// compression is the level for trees and pages. The sandbox is paused while they are
// compressed. 400 MiB of pages of installed Python packages are compressed to 23.3% at
// 370 MB/s by "fastest", to 22.2% at 300 MB/s by "default" and to 21.4% at 145 MB/s by
// "better"; all are read at over 1 GB/s.
const compression = zstd.SpeedFastest

// rootPath is gVisor's name for the file system above the root, and containerName its
// name for a container that was given none.
var rootPath = checkpoint.ResourceID{Path: "/"}

const containerName = "__no_name_0"

// saveTree makes gVisor describe the changed files. It streams their tree to tree and
// returns their table of pages. The sandbox must be paused.
func (s *Sandbox) saveTree(tree io.Writer) (table []byte, err error) {
	if err := s.room(ScanBytes); err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	treeR, treeW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer treeR.Close()
	tableR, tableW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, treeW.Close())
	}
	defer tableR.Close()
	conn, err := client.ConnectTo(s.c.Sandbox.GetControlSocketPath())
	if err != nil {
		return nil, errors.Join(err, treeW.Close(), tableW.Close())
	}
	defer conn.Close()
	var g errgroup.Group
	g.Go(func() error {
		args := boot.FSSaveArgs{Paths: []checkpoint.ResourceID{rootPath}}
		// No pages are written: they are read from the file of writes.
		args.Files = []*os.File{null, treeW, tableW, null}
		err := conn.Call(boot.ContMgrFSSave, &args, nil)
		return errors.Join(err, treeW.Close(), tableW.Close())
	})
	g.Go(func() error {
		_, err := io.Copy(tree, treeR)
		if err != nil {
			treeR.Close() // so that gVisor does not block
		}
		return err
	})
	g.Go(func() (err error) {
		table, err = io.ReadAll(io.LimitReader(tableR, maxTableBytes+1))
		if len(table) > maxTableBytes {
			tableR.Close()
			return errors.New("the table of pages is too large")
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("read changed files: %w", err)
	}
	return table, nil
}

// WriteChanges writes what the sandbox has changed above its root, as a tar stream in
// which a character device 0:0 stands for a removed file. A truncated stream lacks the
// tar format's end. The sandbox must be paused.
func (s *Sandbox) WriteChanges(w io.Writer) error {
	r, tree := io.Pipe()
	var g errgroup.Group
	g.Go(func() error {
		_, err := s.saveTree(tree)
		tree.CloseWithError(err)
		return err
	})
	out := bufio.NewWriterSize(w, 256<<10)
	err := writeTar(out, r, s.filestore, s.writesBytes)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // let gVisor finish writing
	}
	r.CloseWithError(err)
	return errors.Join(err, g.Wait(), out.Flush())
}

// SaveTree writes [FilesTree] and [FilesTable] to the directory of a checkpoint of the
// same instant. The sandbox must be paused.
func (s *Sandbox) SaveTree(dir string) error {
	_, err := s.saveFiles(dir)
	return err
}

// SaveFiles writes [FilesTree], [FilesTable] and [FilesPages] to a directory. The sandbox
// must be paused.
func (s *Sandbox) SaveFiles(dir string) error {
	table, err := s.saveFiles(dir)
	if err != nil {
		return err
	}
	ranges, _, err := parseTable(table, 0)
	if err != nil {
		return err
	}
	return compressTo(filepath.Join(dir, FilesPages), func(w io.Writer) error {
		for _, r := range ranges {
			if _, err := io.Copy(w, io.NewSectionReader(s.filestore, r.Start, r.End-r.Start)); err != nil {
				return fmt.Errorf("keep contents of files: %w", err)
			}
		}
		return nil
	})
}

func (s *Sandbox) saveFiles(dir string) (table []byte, err error) {
	err = compressTo(filepath.Join(dir, FilesTree), func(w io.Writer) (err error) {
		table, err = s.saveTree(w)
		return err
	})
	if err != nil {
		return nil, err
	}
	return table, os.WriteFile(filepath.Join(dir, FilesTable), table, 0o600)
}

func compressTo(path string, write func(io.Writer) error) error {
	return writeFile(path, func(w io.Writer) error {
		z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(compression), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(1<<20))
		if err != nil {
			return err
		}
		return errors.Join(write(z), z.Close())
	})
}

// openCompressed opens a file that compressTo has written, to read up to limit bytes.
func openCompressed(path string, limit int64) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &compressed{Reader: io.LimitReader(z, limit), z: z, f: f}, nil
}

type compressed struct {
	io.Reader
	z *zstd.Decoder
	f *os.File
}

func (c *compressed) Close() error {
	c.z.Close()
	return c.f.Close()
}

// parseTable parses a table of pages. It returns the ranges that are stored, in order from
// the offset at, and their total size.
func parseTable(table []byte, at int64) (ranges []pageRange, total int64, err error) {
	if len(table) < 8 || uint64(len(table)-8) != binary.LittleEndian.Uint64(table) {
		return nil, 0, fmt.Errorf("%w: a table of %d bytes", errTree, len(table))
	}
	var m pgalloc_metadata_go_proto.MemoryFileMetadataProto
	if err := proto.Unmarshal(table[8:], &m); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errTree, err)
	}
	if m.Version != 1 {
		return nil, 0, fmt.Errorf("%w: a table of version %d", errTree, m.Version)
	}
	var end uint64
	for _, r := range m.MemAcct {
		if r.Start < end || r.End <= r.Start || r.End > math.MaxInt64/2 || r.Start%pageSize != 0 || r.End%pageSize != 0 {
			return nil, 0, fmt.Errorf("%w: pages out of order", errTree)
		}
		end = r.End
		if !r.KnownCommitted {
			continue
		}
		ranges = append(ranges, pageRange{Start: int64(r.Start), End: int64(r.End), At: at + total})
		total += int64(r.End - r.Start)
	}
	return ranges, total, nil
}

// filesTable is the table of a checkpoint's pages of files.
type filesTable struct {
	raw []byte
	// start is the offset of these pages in the checkpoint's file of pages, which starts
	// with the sandbox's memory; 0 without memory.
	start int64
	total int64 // bytes of pages
}

// readTable reads the table of a checkpoint's pages of files.
func readTable(dir string) (filesTable, error) {
	var t filesTable
	var err error
	if t.raw, t.total, err = readFilesTable(dir); err != nil {
		return t, err
	}
	info, err := os.Stat(filepath.Join(dir, checkpointfiles.PagesFileName))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	if t.start, err = memoryBytes(filepath.Join(dir, checkpointfiles.PagesMetadataFileName)); err != nil {
		return t, err
	}
	// If the sizes match, the tree and the pages are of the same instant.
	if t.start+t.total != info.Size() {
		return t, fmt.Errorf("%w: %d bytes of memory and %d of files in %d bytes of pages", errTree, t.start, t.total, info.Size())
	}
	return t, nil
}

// memoryBytes returns how much memory a checkpoint contains, from the file with its
// tables of pages. The first table is that of the memory.
func memoryBytes(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n > maxTableBytes {
		return 0, fmt.Errorf("%w: a table of %d bytes", errTree, n)
	}
	table := make([]byte, 8+n)
	copy(table, head[:])
	if _, err := io.ReadFull(f, table[8:]); err != nil {
		return 0, err
	}
	_, total, err := parseTable(table, 0)
	return total, err
}

// readFilesTable returns [FilesTable] of a checkpoint, and the total size of its pages.
func readFilesTable(dir string) (table []byte, total int64, err error) {
	f, err := os.Open(filepath.Join(dir, FilesTable))
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if table, err = io.ReadAll(io.LimitReader(f, maxTableBytes+1)); err != nil {
		return nil, 0, err
	}
	if len(table) > maxTableBytes {
		return nil, 0, fmt.Errorf("%w: a table of pages that is too large", errTree)
	}
	_, total, err = parseTable(table, 0)
	return table, total, err
}

// maxTreeBytes limits a tree: about 1 KiB for each changed file.
const maxTreeBytes = 4 << 30

// Changes returns what [Sandbox.WriteChanges] would have written when the checkpoint in
// dir was made. It starts no part of gVisor, so it works for checkpoints of any build.
// limit is the size of the sandbox's disk, and scratch a directory for as many bytes. An
// incomplete stream ends with an error.
func Changes(dir, scratch string, limit int64) (io.ReadCloser, error) {
	table, err := readTable(dir)
	if err != nil {
		return nil, err
	}
	ranges, total, err := parseTable(table.raw, table.start)
	if err != nil {
		return nil, err
	}
	var pages *os.File
	if _, serr := os.Stat(filepath.Join(dir, FilesPages)); serr == nil {
		pages, err = unpacked(filepath.Join(dir, FilesPages), scratch, total)
	} else {
		pages, err = os.Open(filepath.Join(dir, checkpointfiles.PagesFileName))
	}
	if err != nil {
		return nil, err
	}
	tree, err := openCompressed(filepath.Join(dir, FilesTree), maxTreeBytes)
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	r, w := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(w, 256<<10)
		err := writeTar(out, tree, &keptPages{ranges: ranges, data: pages}, limit)
		err = errors.Join(err, out.Flush(), tree.Close(), pages.Close())
		w.CloseWithError(err)
	}()
	return r, nil
}

// unpacked returns an unnamed file with the n bytes of a compressed file.
func unpacked(path, scratch string, n int64) (*os.File, error) {
	f, err := os.CreateTemp(scratch, "pages-")
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.Remove(f.Name()), unpack(path, f, n))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func unpack(path string, w io.Writer, n int64) error {
	z, err := openCompressed(path, n+1)
	if err != nil {
		return err
	}
	got, err := io.Copy(w, z)
	if err == nil && got != n {
		err = fmt.Errorf("%w: %d bytes of pages instead of %d", errTree, got, n)
	}
	return errors.Join(err, z.Close())
}

// PrepareFiles fills the empty directory to, for use as [Config.FilesDir], with the files
// of the checkpoint in from.
func PrepareFiles(from, to string) error {
	table, err := readTable(from)
	if err != nil {
		return err
	}
	pages := filepath.Join(to, checkpointfiles.PagesFileName)
	if _, serr := os.Stat(filepath.Join(from, FilesPages)); serr != nil {
		err = os.Symlink(filepath.Join(from, checkpointfiles.PagesFileName), pages)
	} else {
		err = writeFile(pages, func(w io.Writer) error { return unpack(filepath.Join(from, FilesPages), w, table.total) })
	}
	if err != nil {
		return err
	}
	var size int64
	err = writeFile(filepath.Join(to, checkpointfiles.FSCheckpointMultiTarFileName), func(w io.Writer) error {
		z, err := openCompressed(filepath.Join(from, FilesTree), maxTreeBytes)
		if err != nil {
			return err
		}
		size, err = io.Copy(w, z)
		return errors.Join(err, z.Close())
	})
	if err != nil {
		return err
	}
	id := &fscheckpoint_proto_go_proto.ResourceID{ContainerName: containerName, Path: rootPath.Path}
	manifest, err := proto.Marshal(&fscheckpoint_proto_go_proto.Manifest{
		Version: 1, PageSize: pageSize, Endian: "little",
		MemoryFiles: []*fscheckpoint_proto_go_proto.MemoryFile{{
			ResourceId: id, PagesMetadataEnd: uint64(len(table.raw)), PagesStart: uint64(table.start),
		}},
		Tmpfs: []*fscheckpoint_proto_go_proto.Tmpfs{{ResourceId: id, TarEnd: uint64(size)}},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(to, checkpointfiles.FSCheckpointManifestFileName), manifest, 0o600),
		os.WriteFile(filepath.Join(to, checkpointfiles.PagesMetadataFileName), table.raw, 0o600),
	)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// openFilestore opens the file of the sandbox's writes. The file has no name, but the
// sentry holds it open; no code of the sandbox has run in the sentry yet.
func openFilestore(sentry int) (*os.File, error) {
	dir, err := fdDir(sentry)
	if err != nil {
		return nil, fmt.Errorf("find the file of writes: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find the file of writes: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		target, err := os.Readlink(path)
		if err != nil || !strings.Contains(target, "runsc-filestore-") {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the file of writes: %w", err)
		}
		return f, nil
	}
	return nil, errors.New("gVisor has no file of writes open")
}
