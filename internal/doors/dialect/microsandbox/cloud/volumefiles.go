package cloud

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/volumefiles"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// The headers of calls on the files of a volume.
const (
	headerPath      = "x-msb-file-path" // base64url of the path, without padding
	headerRecursive = "x-msb-file-recursive"
)

// volumeFile is a file of a volume as the product shows it. Cove knows only one of its
// times.
type volumeFile struct {
	Path       string    `json:"path"`
	Kind       string    `json:"kind"`
	Size       int64     `json:"size"`
	Mode       int64     `json:"mode"`
	UID        uint32    `json:"uid"`
	GID        uint32    `json:"gid"`
	ReadOnly   bool      `json:"readonly"`
	ModifiedAt time.Time `json:"modified_at"`
}

func viewVolumeFile(i *sandbox.FileInfo) volumeFile {
	mode, _ := strconv.ParseInt(i.Mode, 8, 64) // formatted by the service
	v := volumeFile{Path: i.Path, Kind: string(i.Type), Size: i.Size, Mode: mode, UID: i.UID, GID: i.GID, ReadOnly: mode&0o222 == 0, ModifiedAt: i.ModifiedAt}
	if i.Type == sandbox.TypeOther {
		v.Kind = string(sandbox.TypeFile)
	}
	return v
}

// volumeHandler serves a call on the files of a volume.
type volumeHandler func(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error

func (d *Door) volumeFileRoutes() []sdkdoor.Route[handler] {
	on := func(method, pattern string, h volumeHandler) sdkdoor.Route[handler] {
		return sdkdoor.On(method, "/v1/volumes/*/files"+pattern, handler(func(w http.ResponseWriter, r *http.Request, args []string) error {
			files, err := d.volumes.Open(r.Context(), args[0])
			if err != nil {
				return aboutVolume(args[0], err)
			}
			return aboutVolumeFile(h(w, r, files))
		}))
	}
	return []sdkdoor.Route[handler]{
		on(http.MethodGet, "", listVolumeFiles),
		on(http.MethodDelete, "", removeVolumeFile),
		on(http.MethodGet, "/content", readVolumeFile),
		sdkdoor.On(http.MethodPut, "/v1/volumes/*/files/content", handler(d.writeVolumeFile)),
		on(http.MethodGet, "/stat", statVolumeFile),
		on(http.MethodGet, "/exists", volumeFileExists),
		on(http.MethodPost, "/mkdir", makeVolumeDir),
		on(http.MethodPost, "/copy", copyVolumeFile),
		on(http.MethodPost, "/rename", renameVolumeFile),
	}
}

func aboutVolume(name string, err error) error {
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
		return errNoVolume(name)
	}
	return err
}

// aboutVolumeFile makes errors distinguish a missing file from a missing volume.
func aboutVolumeFile(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return &coded{err, "volume_file_not_found"}
	}
	return err
}

// volumePath reads the path of a request.
func volumePath(r *http.Request) (string, error) {
	values := r.Header.Values(headerPath)
	if len(values) != 1 {
		return "", badPath(headerPath + " has to be given once")
	}
	data, err := base64.RawURLEncoding.DecodeString(values[0])
	if err != nil {
		return "", badPath(headerPath + " is not base64url without padding")
	}
	return checkedPath(string(data))
}

func checkedPath(p string) (string, error) {
	if p == "" || len(p) > sandbox.MaxPathBytes || !utf8.ValidString(p) || strings.ContainsRune(p, 0) {
		return "", badPath("the path " + clip.Text(p, maxShown) + " is not one of a file")
	}
	return p, nil
}

func badPath(text string) error { return &coded{invalid("%s", text), "invalid_volume_path"} }

func listVolumeFiles(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	at, err := volumePath(r)
	if err != nil {
		return err
	}
	list, err := files.List(r.Context(), at, 1)
	if err != nil {
		return err
	}
	rows := make([]volumeFile, len(list))
	for i := range list {
		rows[i] = viewVolumeFile(&list[i])
	}
	writeJSON(w, map[string]any{"entries": rows})
	return nil
}

func statVolumeFile(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	at, err := volumePath(r)
	if err != nil {
		return err
	}
	info, err := files.Stat(r.Context(), at)
	if err != nil {
		return err
	}
	writeJSON(w, map[string]any{"metadata": viewVolumeFile(info)})
	return nil
}

func volumeFileExists(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	at, err := volumePath(r)
	if err != nil {
		return err
	}
	_, err = files.Stat(r.Context(), at)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return err
	}
	writeJSON(w, map[string]bool{"exists": err == nil})
	return nil
}

func readVolumeFile(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	at, err := volumePath(r)
	if err != nil {
		return err
	}
	file, err := files.Read(r.Context(), at)
	if err != nil {
		return err
	}
	defer file.Close()
	sdkdoor.SendFile(w, file, at)
	return nil
}

// writeVolumeFile writes the file that a request carries.
func (d *Door) writeVolumeFile(w http.ResponseWriter, r *http.Request, args []string) error {
	limits.Receive(w, r, func() (*sandbox.FileInfo, error) {
		at, err := volumePath(r)
		if err != nil {
			return nil, err
		}
		files, err := d.volumes.Open(r.Context(), args[0])
		if err != nil {
			return nil, aboutVolume(args[0], err)
		}
		info, err := files.Write(r.Context(), sandbox.WriteFileRequest{Path: at}, r.Body)
		return info, aboutVolumeFile(err)
	}, func(*sandbox.FileInfo) { writeJSON(w, map[string]string{"message": "file written"}) }, func(err error) { writeError(w, err) })
	return nil
}

func removeVolumeFile(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	at, err := volumePath(r)
	if err != nil {
		return err
	}
	recursive := r.Header.Get(headerRecursive)
	if recursive != "" && recursive != "true" && recursive != "false" {
		return invalid("%s is neither true nor false", headerRecursive)
	}
	if err := files.Delete(r.Context(), at, recursive == "true"); err != nil {
		return err
	}
	writeJSON(w, map[string]string{"message": "file removed"})
	return nil
}

func makeVolumeDir(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	var body struct {
		Path string `json:"path"`
	}
	if err := decode(w, r, &body); err != nil {
		return err
	}
	at, err := checkedPath(body.Path)
	if err != nil {
		return err
	}
	if _, err := files.MakeDir(r.Context(), sandbox.MakeDirRequest{Path: at}); err != nil {
		return err
	}
	writeJSON(w, map[string]string{"message": "directory made"})
	return nil
}

// readMove reads the source and destination of a copy or rename.
func readMove(w http.ResponseWriter, r *http.Request) (from, to string, err error) {
	var body struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	if err := decode(w, r, &body); err != nil {
		return "", "", err
	}
	if from, err = checkedPath(body.From); err == nil {
		to, err = checkedPath(body.To)
	}
	return from, to, err
}

func copyVolumeFile(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	from, to, err := readMove(w, r)
	if err == nil {
		_, err = files.Stat(r.Context(), from)
	}
	if err == nil {
		err = files.Copy(r.Context(), from, to)
	}
	if err != nil {
		return err
	}
	writeJSON(w, map[string]string{"message": "file copied"})
	return nil
}

func renameVolumeFile(w http.ResponseWriter, r *http.Request, files *volumefiles.Files) error {
	from, to, err := readMove(w, r)
	if err == nil {
		err = files.Move(r.Context(), from, to)
	}
	if err != nil {
		return err
	}
	writeJSON(w, map[string]string{"message": "file renamed"})
	return nil
}
