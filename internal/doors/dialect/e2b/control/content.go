package control

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/volumefiles"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// contentPath is where the contents of volumes are served, with tokens of their own.
const contentPath = "/volumecontent/"

// VolumeOf returns the id of the volume whose content a request is for.
func VolumeOf(r *http.Request) (id string, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, contentPath)
	id, _, _ = strings.Cut(rest, "/")
	return id, ok
}

// volumeStat is a file of a volume.
type volumeStat struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   int64     `json:"mode"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

// viewVolumeFile describes a file. Cove knows only one of its times.
func viewVolumeFile(i *sandbox.FileInfo) volumeStat {
	mode, _ := strconv.ParseInt(i.Mode, 8, 64) // the service's own
	v := volumeStat{
		Name: i.Name, Type: "unknown", Path: i.Path, Size: i.Size, Mode: mode, UID: i.UID, GID: i.GID,
		ATime: i.ModifiedAt, MTime: i.ModifiedAt, CTime: i.ModifiedAt, Target: i.SymlinkTarget,
	}
	switch i.Type {
	case sandbox.TypeFile, sandbox.TypeDirectory, sandbox.TypeSymlink:
		v.Type = string(i.Type)
	}
	return v
}

// contentQuery are the parameters of a call on the content of a volume.
type contentQuery struct {
	path        string
	mode, owner string
	force       bool
	depth       int
}

func readContentQuery(values url.Values) (q contentQuery, err error) {
	for name, given := range values {
		if len(given) != 1 {
			return q, invalid("validation error: %.80s is given more than once", name)
		}
		text := given[0]
		switch name {
		case "path":
			q.path = text
		case "force":
			if q.force, err = strconv.ParseBool(text); err != nil {
				return q, invalid("validation error: force %.80q is not true or false", text)
			}
		case "depth":
			if q.depth, err = strconv.Atoi(text); err != nil || q.depth < 0 {
				return q, invalid("validation error: depth %.80q is not a number from 0", text)
			}
		case "mode":
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				return q, invalid("validation error: mode %.80q is not a number", text)
			}
			q.mode = octal(n)
		case "uid", "gid":
			if _, err := strconv.ParseUint(text, 10, 32); err != nil {
				return q, invalid("validation error: %s %.80q is not a number", name, text)
			}
		default:
			return q, refused(name)
		}
	}
	if q.path == "" || strings.ContainsRune(q.path, 0) {
		return q, invalid("validation error: path is missing")
	}
	q.owner = ownerOf(values.Get("uid"), values.Get("gid"))
	return q, nil
}

func octal(mode uint64) string { return "0" + strconv.FormatUint(mode&0o7777, 8) }

// ownerOf returns an owner in Cove's form; a group alone is that of root.
func ownerOf(uid, gid string) string {
	switch {
	case uid == "" && gid == "":
		return ""
	case gid == "":
		return uid
	case uid == "":
		uid = "0"
	}
	return uid + ":" + gid
}

// contentHandler serves a call on the content of a volume. It writes the answer, or returns
// an error and has written nothing.
type contentHandler func(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error

func (p *plane) contentRoutes() []sdkdoor.Route[contentHandler] {
	on := sdkdoor.On[contentHandler]
	return []sdkdoor.Route[contentHandler]{
		on(http.MethodGet, contentPath+"*/dir", listContent),
		on(http.MethodPost, contentPath+"*/dir", makeContentDir),
		on(http.MethodGet, contentPath+"*/path", statContent),
		on(http.MethodPatch, contentPath+"*/path", changeContent),
		on(http.MethodDelete, contentPath+"*/path", removeContent),
		on(http.MethodGet, contentPath+"*/file", readContent),
		on(http.MethodPut, contentPath+"*/file", nil), // see receiveContent
	}
}

// serveContent serves the content of a volume, for which the caller has a token.
func (p *plane) serveContent(w http.ResponseWriter, r *http.Request, volume string) {
	found, _, allowed := sdkdoor.Find(p.content, r)
	if found == nil {
		status := http.StatusNotFound
		if allowed != "" {
			status = http.StatusMethodNotAllowed
		}
		answer.Volume(w, status, sdkdoor.Unserved(r, "E2B", allowed))
		return
	}
	if r.Method == http.MethodPut {
		limits.Receive(w, r, func() (*sandbox.FileInfo, error) { return p.receiveContent(r, volume) },
			func(info *sandbox.FileInfo) { answer.JSON(w, http.StatusCreated, viewVolumeFile(info)) },
			func(err error) { p.failContent(w, r, err) })
		return
	}
	files, q, err := p.openContent(r, volume)
	if err == nil {
		err = found.Serve(w, r, files, &q)
	}
	if err != nil {
		p.failContent(w, r, err)
	}
}

// openContent opens the volume of a request.
func (p *plane) openContent(r *http.Request, volume string) (*volumefiles.Files, contentQuery, error) {
	q, err := readContentQuery(r.URL.Query())
	if err != nil {
		return nil, q, err
	}
	files, err := p.volumes.Open(r.Context(), volume)
	return files, q, err
}

func (p *plane) failContent(w http.ResponseWriter, r *http.Request, err error) {
	if sandbox.CodeOf(err) == sandbox.CodeInternal {
		p.cfg.Log.ErrorContext(r.Context(), "serve the content of a volume", "path", r.URL.Path, "error", err)
	}
	sdkdoor.SetRetryAfter(w.Header(), err)
	f := answer.Of(err)
	answer.Volume(w, f.Code, f.Message)
}

func listContent(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	list, err := files.List(r.Context(), q.path, max(q.depth, 1))
	if err != nil {
		return err
	}
	out := make([]volumeStat, len(list))
	for i := range list {
		out[i] = viewVolumeFile(&list[i])
	}
	answer.JSON(w, http.StatusOK, out)
	return nil
}

func makeContentDir(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	if !q.force {
		if err := needsParent(r, files, q); err != nil {
			return err
		}
	}
	info, err := files.MakeDir(r.Context(), sandbox.MakeDirRequest{Path: q.path, Mode: q.mode, Owner: q.owner, Exclusive: !q.force})
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusCreated, viewVolumeFile(info))
	return nil
}

// needsParent refuses a path below a directory that is not there.
func needsParent(r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	_, err := files.Stat(r.Context(), q.path+"/..")
	return err
}

func statContent(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	info, err := files.Stat(r.Context(), q.path)
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, viewVolumeFile(info))
	return nil
}

func changeContent(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	var body struct {
		UID  *uint32 `json:"uid"`
		GID  *uint32 `json:"gid"`
		Mode *uint32 `json:"mode"`
	}
	if err := decode(w, r, &body); err != nil {
		return err
	}
	info, err := files.Stat(r.Context(), q.path)
	if err != nil {
		return err
	}
	mode, owner := "", ""
	if body.Mode != nil {
		mode = octal(uint64(*body.Mode))
	}
	if body.UID != nil || body.GID != nil {
		uid, gid := info.UID, info.GID
		if body.UID != nil {
			uid = *body.UID
		}
		if body.GID != nil {
			gid = *body.GID
		}
		owner = strconv.FormatUint(uint64(uid), 10) + ":" + strconv.FormatUint(uint64(gid), 10)
	}
	if err := files.Change(r.Context(), q.path, mode, owner); err != nil {
		return err
	}
	return statContent(w, r, files, q)
}

func removeContent(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	if err := files.Delete(r.Context(), q.path, true); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func readContent(w http.ResponseWriter, r *http.Request, files *volumefiles.Files, q *contentQuery) error {
	file, err := files.Read(r.Context(), q.path)
	if err != nil {
		return err
	}
	defer file.Close()
	sdkdoor.SendFile(w, file, q.path)
	return nil
}

// receiveContent writes the file that a request carries.
func (p *plane) receiveContent(r *http.Request, volume string) (*sandbox.FileInfo, error) {
	files, q, err := p.openContent(r, volume)
	if err != nil {
		return nil, err
	}
	return files.Write(r.Context(), sandbox.WriteFileRequest{Path: q.path, Mode: q.mode, Owner: q.owner, MakeParents: q.force, Exclusive: !q.force}, r.Body)
}
