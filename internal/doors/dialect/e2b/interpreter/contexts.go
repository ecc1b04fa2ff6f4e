package interpreter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

// namePrefix is the prefix of the names of contexts that clients have created. Their
// first run is the one that creates them.
const namePrefix = "e2b-"

// codeContext is an interpreter as clients see it.
type codeContext struct {
	ID       string           `json:"id"`
	Language sandbox.Language `json:"language"`
	CWD      string           `json:"cwd"`
}

// idOf returns the id of a context: its language, and its name unless that is the
// default, so that an id can be parsed without a lookup.
func idOf(ref sandbox.ContextRef) string {
	if ref.Name == "" || ref.Name == defaultName {
		return string(ref.Language)
	}
	return string(ref.Language) + "-" + ref.Name
}

const defaultName = "default"

func refOf(id string) (sandbox.ContextRef, bool) {
	language, name, named := strings.Cut(id, "-")
	if !slices.Contains(sandbox.Languages(), sandbox.Language(language)) || named && (name == "" || name == defaultName) {
		return sandbox.ContextRef{}, false
	}
	if !named {
		name = defaultName
	}
	return sandbox.ContextRef{Language: sandbox.Language(language), Name: name}, true
}

// contexts lists the contexts in the order that clients expect: first the two that
// always exist, then the others in order of creation.
func (s *plane) contexts(ctx context.Context, box string) ([]codeContext, error) {
	sb, err := s.svc.Get(ctx, box)
	if err != nil {
		return nil, err
	}
	list, err := s.svc.ListContexts(ctx, box)
	if err != nil {
		return nil, err
	}
	all := []codeContext{{ID: string(sandbox.Python), Language: sandbox.Python}, {ID: string(sandbox.JavaScript), Language: sandbox.JavaScript}}
	for i := range list.Items {
		c := &list.Items[i]
		now := codeContext{idOf(sandbox.ContextRef{Language: c.Language, Name: c.Name}), c.Language, c.WorkDir}
		if at := slices.IndexFunc(all[:2], func(d codeContext) bool { return d.ID == now.ID }); at >= 0 {
			all[at] = now
			continue
		}
		all = append(all, now)
	}
	for i := range all {
		if all[i].CWD == "" {
			all[i].CWD = sb.WorkDir
		}
	}
	return all, nil
}

// find returns the context of an id, or a refusal with 404.
func (s *plane) find(ctx context.Context, box, id string) (sandbox.ContextRef, codeContext, error) {
	ref, ok := refOf(id)
	if !ok {
		return ref, codeContext{}, noContext()
	}
	all, err := s.contexts(ctx, box)
	if err != nil {
		return ref, codeContext{}, err
	}
	at := slices.IndexFunc(all, func(c codeContext) bool { return c.ID == id })
	if at < 0 {
		return ref, codeContext{}, noContext()
	}
	return ref, all[at], nil
}

func noContext() error { return refused(http.StatusNotFound, "Context ID not found") }

func (s *plane) list(w http.ResponseWriter, r *http.Request, box string) error {
	all, err := s.contexts(r.Context(), box)
	if err == nil {
		answer.JSON(w, http.StatusOK, all)
	}
	return err
}

func (s *plane) create(w http.ResponseWriter, r *http.Request, box string) error {
	var in struct {
		Language string `json:"language"`
		CWD      string `json:"cwd"`
	}
	if err := decode(w, r, &in); err != nil {
		return err
	}
	language, err := languageOf(in.Language)
	if err != nil {
		return err
	}
	if language == sandbox.Go {
		return refused(http.StatusBadRequest, "code in Go is a program of its own each time and has no contexts; run it with the language go")
	}
	ref := sandbox.ContextRef{Language: language, Name: newName()}
	if err := s.enter(r.Context(), box, ref, in.CWD); err != nil {
		_ = s.svc.DeleteContext(context.WithoutCancel(r.Context()), box, ref)
		return err
	}
	_, now, err := s.find(r.Context(), box, idOf(ref))
	if err == nil {
		answer.JSON(w, http.StatusOK, now)
	}
	return err
}

func newName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return namePrefix + hex.EncodeToString(b[:])
}

// enter starts the interpreter of a context, unless it runs, and changes its working
// directory, "" for the sandbox's default.
func (s *plane) enter(ctx context.Context, box string, ref sandbox.ContextRef, dir string) error {
	res, err := s.svc.RunCode(ctx, box, sandbox.RunCodeRequest{Language: ref.Language, Context: ref.Name, Code: chdir(ref.Language, dir)}, nil)
	if err != nil {
		return err
	}
	if res.Error != nil || res.ExitCode != 0 {
		return refused(http.StatusInternalServerError, "the directory %.200q cannot be the context's working directory; make it first", dir)
	}
	return nil
}

// chdir returns code that changes the working directory, unless dir is "", and has no
// other effect.
func chdir(l sandbox.Language, dir string) string {
	if dir == "" {
		return "\n"
	}
	quoted, _ := json.Marshal(dir) // never fails for a string
	switch l {
	case sandbox.Python:
		return `__import__("os").chdir(` + string(quoted) + `)`
	case sandbox.Bash:
		return "cd -- " + dialect.Quote(dir)
	default:
		return `process.chdir(` + string(quoted) + `)`
	}
}

func (s *plane) restart(w http.ResponseWriter, r *http.Request, box, id string) error {
	ref, now, err := s.find(r.Context(), box, id)
	if err != nil {
		return err
	}
	// A default context that has not run anything has no interpreter yet.
	if _, err = s.svc.RestartContext(r.Context(), box, ref); err != nil && (ref.Name != defaultName || sandbox.CodeOf(err) != sandbox.CodeNotFound) {
		return err
	}
	if strings.HasPrefix(ref.Name, namePrefix) {
		if err := s.enter(r.Context(), box, ref, now.CWD); err != nil {
			return err
		}
	}
	answer.JSON(w, http.StatusOK, nil)
	return nil
}

func (s *plane) remove(w http.ResponseWriter, r *http.Request, box, id string) error {
	ref, _, err := s.find(r.Context(), box, id)
	if err == nil {
		err = s.svc.DeleteContext(r.Context(), box, ref)
	}
	if err == nil {
		answer.JSON(w, http.StatusOK, nil)
	}
	return err
}
