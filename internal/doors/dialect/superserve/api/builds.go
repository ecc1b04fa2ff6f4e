package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// build is a build as the product shows it.
type build struct {
	ID        string `json:"id"`
	Template  string `json:"template_id"`
	Status    string `json:"status"`
	Hash      string `json:"build_spec_hash"`
	Error     string `json:"error_message,omitempty"`
	StartedAt string `json:"started_at"`
	EndedAt   string `json:"finalized_at,omitempty"`
	CreatedAt string `json:"created_at"`
}

func viewBuild(b *sandbox.Build) build {
	// A template's source is kept with its name, so the hash of the name stands for that of
	// the specification.
	sum := sha256.Sum256([]byte("cove template " + b.Template))
	v := build{
		ID: b.ID, Template: b.Template, Status: string(b.State), Hash: hex.EncodeToString(sum[:]),
		StartedAt: dialect.Stamp(b.CreatedAt), EndedAt: dialect.StampOf(b.EndedAt), CreatedAt: dialect.Stamp(b.CreatedAt),
	}
	if b.State == sandbox.BuildFailed {
		v.Error = failure(b.Reason)
	}
	return v
}

// stepFailed recognizes the failure of a build's command.
var stepFailed = lazyregexp.New(`(?i)\b(step|exit(ed)?( with)?( code| status)?) `)

// failure returns the reason of a failed build in the product's form: a code and a text.
func failure(reason string) string {
	code := "build_failed"
	if stepFailed.MatchString(reason) {
		code = "step_failed"
	}
	return code + ": " + reason
}

// builds returns the builds of a template, or all, newest first.
func (d *Door) builds(ctx context.Context, name string) iter.Seq2[sandbox.Build, error] {
	return sandbox.Each(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Build], error) {
		return d.cfg.Service.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: name, Page: p})
	})
}

// lastBuild returns the newest build of a template, or nil if none is remembered.
func (d *Door) lastBuild(ctx context.Context, name string) (*sandbox.Build, error) {
	if name == terms.BaseTemplate {
		return nil, nil
	}
	for b, err := range d.builds(ctx, terms.TemplateName(name)) {
		return &b, err
	}
	return nil, nil
}

// build returns a build of a template.
func (d *Door) build(ctx context.Context, name, id string) (*sandbox.Build, error) {
	b, err := d.cfg.Service.GetBuild(ctx, id)
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeNotFound || code == sandbox.CodeInvalid || err == nil && b.Template != terms.TemplateName(name) {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "Build %s not found", clip.Text(id, maxShown))
	}
	return b, err
}

func (d *Door) rebuild(w http.ResponseWriter, r *http.Request, args []string) error {
	if err := own(args[0]); err != nil {
		return err
	}
	if _, err := d.template(r.Context(), args[0]); err != nil {
		return err
	}
	last, err := d.lastBuild(r.Context(), args[0])
	if err != nil {
		return err
	}
	if last != nil && last.State == sandbox.BuildRunning {
		writeJSON(w, http.StatusOK, viewBuild(last))
		return nil
	}
	b, err := d.cfg.Service.StartBuild(r.Context(), sandbox.BuildTemplateRequest{Name: args[0], Force: true})
	if err != nil {
		return quota(err, "too_many_builds")
	}
	writeJSON(w, http.StatusCreated, viewBuild(b))
	return nil
}

func (d *Door) listBuilds(w http.ResponseWriter, r *http.Request, args []string) error {
	query, err := onlyParams(r, "limit")
	if err != nil {
		return err
	}
	const usual, most = 20, 100
	limit, err := readLimit(query.Get("limit"), usual, most)
	if err != nil {
		return err
	}
	if _, err := d.template(r.Context(), args[0]); err != nil {
		return err
	}
	rows := []build{}
	if args[0] != terms.BaseTemplate {
		for b, err := range d.builds(r.Context(), terms.TemplateName(args[0])) {
			if err != nil {
				return err
			}
			if rows = append(rows, viewBuild(&b)); len(rows) == limit {
				break
			}
		}
	}
	writeJSON(w, http.StatusOK, rows)
	return nil
}

func (d *Door) getBuild(w http.ResponseWriter, r *http.Request, args []string) error {
	b, err := d.build(r.Context(), args[0], args[1])
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, viewBuild(b))
	return nil
}

func (d *Door) cancelBuild(w http.ResponseWriter, r *http.Request, args []string) error {
	b, err := d.build(r.Context(), args[0], args[1])
	if err == nil {
		_, err = d.cfg.Service.CancelBuild(r.Context(), b.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// logLine is an event of a build's log.
type logLine struct {
	Time     string `json:"timestamp"`
	Stream   string `json:"stream"`
	Text     string `json:"text"`
	Finished bool   `json:"finished,omitempty"`
	Status   string `json:"status,omitempty"`
}

// buildLogs streams the log of a build from its beginning. Lines carry the time at which
// they are sent, since the build's record has no times.
func (d *Door) buildLogs(w http.ResponseWriter, r *http.Request, args []string) error {
	b, err := d.build(r.Context(), args[0], args[1])
	if err != nil {
		return err
	}
	out := newStream(w)
	defer out.close()
	step := ""
	line := func(stream, text string) error {
		return out.send(logLine{Time: dialect.Stamp(time.Now()), Stream: stream, Text: text})
	}
	ended, err := d.cfg.Service.FollowBuild(r.Context(), b.ID, func(e sandbox.BuildEvent) error {
		if e.Step != "" && e.Step != step {
			step = e.Step
			if err := line("system", step+"\n"); err != nil {
				return err
			}
		}
		if e.Log == "" || e.Failed {
			return nil // a failure's reason is sent last
		}
		return line("stdout", strings.ToValidUTF8(e.Log, "\uFFFD"))
	})
	last := logLine{Time: dialect.Stamp(time.Now()), Stream: "system", Finished: true, Status: string(sandbox.BuildFailed)}
	switch {
	case err != nil:
		last.Text = sandbox.MessageOf(err)
	default:
		last.Status, last.Text = string(ended.State), ended.Reason
	}
	_ = out.send(last) // the client may be gone
	return nil
}
