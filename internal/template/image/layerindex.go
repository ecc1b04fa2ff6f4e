package image

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The files of a layer's directory: its description, the entries that remove
// something of lower layers, all other entries, and below "f" the content of files by
// number.
const (
	layerInfoFile  = "layer.json"
	layerGoneFile  = "gone"
	layerIndexFile = "index"
	layerFilesDir  = "f"
)

const layerVersion = 1

// layerEntry is an entry of a layer's indexes, which have the order of the tar
// stream. Names are bytes without an encoding.
type layerEntry struct {
	// Kind is 'd', 'f', 'l' as in [entry], 'h' for a hard link to a file of this layer
	// or a lower one, 'w' for a name that is removed, 'o' for a directory whose content
	// in lower layers is removed.
	Kind     byte
	Path     string
	Mode     uint32
	UID, GID int
	Size     int64
	// File is the number of the file that has the content.
	File int64
	// Link is where a symbolic link points, or which file a hard link names.
	Link string
	// Time is the modification time in nanoseconds since 1970.
	Time int64
}

func (e *layerEntry) meta() meta {
	return meta{mode: e.Mode, uid: e.UID, gid: e.GID, mtime: time.Unix(0, e.Time)}
}

// storedName returns the path of content in the directory of a layer's files, with
// at most 1000 files in each directory.
func storedName(n int64) string {
	return strconv.FormatInt(n/1000, 16) + "/" + strconv.FormatInt(n%1000, 16)
}

type layerInfoRecord struct {
	Version int `json:"version"`
	layerInfo
	// Boot is the boot id under which the layer was made, until the layer is known to be on
	// the disk: before that, a power failure may lose some of it.
	Boot string `json:"boot,omitempty"`
}

// bootID returns the kernel's id of the current boot.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
})

// readLayerRecord returns the description of a layer, or [fs.ErrNotExist].
func readLayerRecord(dir string) (r layerInfoRecord, err error) {
	data, err := os.ReadFile(filepath.Join(dir, layerInfoFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read layer: %w", err)
	}
	if r.Version != layerVersion || r.Digest != filepath.Base(dir) {
		return r, fmt.Errorf("layer in %s: not one of this version", dir)
	}
	return r, nil
}

func writeLayerInfo(dir string, info layerInfo, boot string) error {
	data, err := json.Marshal(layerInfoRecord{layerVersion, info, boot})
	if err != nil {
		return err
	}
	// Two builds that share the layer may do this at the same time.
	f, err := os.CreateTemp(dir, layerInfoFile+".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // renamed on success
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, layerInfoFile))
}

// indexWriter writes a layer's index.
type indexWriter struct {
	f   *os.File
	buf *bufio.Writer
	enc *gob.Encoder
}

func newIndexWriter(dir, name string) (*indexWriter, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	w := &indexWriter{f: f, buf: bufio.NewWriterSize(f, 64<<10)}
	w.enc = gob.NewEncoder(w.buf)
	return w, nil
}

func (w *indexWriter) add(e layerEntry) error { return w.enc.Encode(e) }

func (w *indexWriter) close() error { return errors.Join(w.buf.Flush(), w.f.Close()) }

// readIndex calls each with the entries of a layer: first those that remove something,
// wherever they were in the stream.
func readIndex(dir string, each func(*layerEntry) error) error {
	if err := readIndexFile(filepath.Join(dir, layerGoneFile), each); err != nil {
		return err
	}
	return readIndexFile(filepath.Join(dir, layerIndexFile), each)
}

func readIndexFile(path string, each func(*layerEntry) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	dec := gob.NewDecoder(bufio.NewReaderSize(f, 256<<10))
	for {
		var e layerEntry
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read index of layer: %w", err)
		}
		if err := each(&e); err != nil {
			return err
		}
	}
}
