package nodes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"

	"github.com/cove-sh/cove/sandbox"
)

// receive reads a request, or answers why not.
func receive(w http.ResponseWriter, r *http.Request, v any) bool {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		fail(w, sandbox.Wrap(sandbox.CodeInvalid, err, "the request is not valid"))
		return false
	}
	return true
}

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// statuses of errors; others are 500.
var statuses = map[sandbox.Code]int{
	sandbox.CodeInvalid: http.StatusBadRequest, sandbox.CodeUnauthenticated: http.StatusUnauthorized, sandbox.CodeNotFound: http.StatusNotFound,
	sandbox.CodeConflict: http.StatusConflict, sandbox.CodeUnsupported: http.StatusNotImplemented, sandbox.CodeUnavailable: http.StatusServiceUnavailable,
}

func fail(w http.ResponseWriter, err error) {
	code := sandbox.CodeOf(err)
	status, ok := statuses[code]
	if !ok {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Failure{code, sandbox.MessageOf(err)})
}

// leave moves the sandboxes of the node that asks, and says how far that is.
func (n *Nodes) leave(w http.ResponseWriter, r *http.Request, name, _ string) {
	if n.mover == nil {
		fail(w, sandbox.Errorf(sandbox.CodeUnsupported, "this server does not move sandboxes"))
		return
	}
	m, err := n.mover.LeaveNode(r.Context(), name)
	if err != nil {
		fail(w, err)
		return
	}
	send(w, m)
}

func (n *Nodes) giveBack(w http.ResponseWriter, r *http.Request, name, _ string) {
	if n.mover != nil {
		if err := n.mover.ReturnNode(r.Context(), name); err != nil {
			fail(w, err)
			return
		}
	}
	send(w, struct{}{})
}

// AboutRoot describes a root.
type AboutRoot struct {
	// Host says that it is the template host, of which each machine has its own.
	Host bool `json:"host"`
}

func (n *Nodes) aboutRoot(w http.ResponseWriter, r *http.Request, _, _ string) {
	host, err := n.cfg.Roots.IsHost(r.Context(), r.PathValue("digest"))
	if err != nil {
		fail(w, err)
		return
	}
	send(w, AboutRoot{host})
}

// SumTrailer has the SHA-256 of a root's stream, in hexadecimal digits.
const SumTrailer = "Cove-Sum"

func (n *Nodes) root(w http.ResponseWriter, r *http.Request, name, _ string) {
	w.Header().Set("Trailer", SumTrailer)
	out := &summed{w: w}
	sum := sha256.New()
	err := n.cfg.Roots.PackRoot(r.Context(), r.PathValue("digest"), io.MultiWriter(out, sum))
	if err != nil && !out.begun {
		w.Header().Del("Trailer")
		fail(w, err)
		return
	}
	if err != nil {
		n.cfg.Log.Error("send a root to a node", "node", name, "error", err)
		panic(http.ErrAbortHandler) // so that the node does not take it for whole
	}
	w.Header().Set(SumTrailer, hex.EncodeToString(sum.Sum(nil)))
}

// summed notes whether an answer has begun.
type summed struct {
	w     io.Writer
	begun bool
}

func (s *summed) Write(p []byte) (int, error) {
	s.begun = true
	return s.w.Write(p)
}
