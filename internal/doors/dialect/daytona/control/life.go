package control

import (
	"context"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func ephemeral(box *sandbox.Sandbox) bool { return box.Metadata[access.TagEphemeral] != "" }

// tag sets a tag of a sandbox; an empty value removes it.
func (p *plane) tag(ctx context.Context, box *sandbox.Sandbox, key, value string) (*sandbox.Sandbox, error) {
	return p.cfg.Service.Update(ctx, box.ID, sandbox.UpdateRequest{Metadata: tagged(box, key, value)})
}

func tagged(box *sandbox.Sandbox, key, value string) map[string]string {
	all := maps.Clone(box.Metadata)
	if all == nil {
		all = map[string]string{}
	}
	if all[key] = value; value == "" {
		delete(all, key)
	}
	return all
}

// start brings a stopped, paused or archived sandbox back.
func (p *plane) start(w http.ResponseWriter, r *http.Request) error {
	box, err := p.living(r)
	if err == nil {
		box, err = p.cfg.Service.Resume(r.Context(), box.ID, sandbox.ResumeRequest{})
	}
	return p.respond(w, r, box, err)
}

// stop pauses a sandbox, or ends it if it is to be deleted when it is stopped.
func (p *plane) stop(w http.ResponseWriter, r *http.Request) error {
	switch force := r.URL.Query().Get("force"); force {
	case "", "true", "false": // nothing in a sandbox can hold up a stop
	default:
		return answer.Invalid("force is %.20q; give true or false", force)
	}
	box, err := p.living(r)
	if err == nil && ephemeral(box) {
		box, err = p.cfg.Service.Kill(r.Context(), box.ID)
		return p.respond(w, r, box, err)
	}
	if err == nil {
		box, err = p.setAside(r, box, access.Stopped)
	}
	return p.respond(w, r, box, err)
}

func (p *plane) pause(w http.ResponseWriter, r *http.Request) error {
	box, err := p.living(r)
	if err == nil {
		box, err = p.setAside(r, box, access.Paused)
	}
	return p.respond(w, r, box, err)
}

// setAside pauses a sandbox, and notes the state that the client asked for. A sandbox that
// is paused already keeps its state.
func (p *plane) setAside(r *http.Request, box *sandbox.Sandbox, as string) (*sandbox.Sandbox, error) {
	if box.State == sandbox.StatePaused {
		return box, nil
	}
	box, err := p.cfg.Service.Pause(r.Context(), box.ID)
	if err != nil {
		return nil, err
	}
	key, value := access.PausedAs(box, as)
	return p.tag(context.WithoutCancel(r.Context()), box, key, value)
}

// archive marks a stopped sandbox. It is on the disk already.
func (p *plane) archive(w http.ResponseWriter, r *http.Request) error {
	box, err := p.living(r)
	if err != nil {
		return err
	}
	if state := access.State(box, p.now()); state != access.Stopped && state != access.Archived {
		return answer.Invalid("the sandbox is %s; stop it before it is archived", state)
	}
	key, value := access.PausedAs(box, access.Archived)
	box, err = p.tag(r.Context(), box, key, value)
	return p.respond(w, r, box, err)
}

func (p *plane) destroy(w http.ResponseWriter, r *http.Request) error {
	box, err := p.find(r)
	if err == nil {
		box, err = p.cfg.Service.Kill(r.Context(), box.ID)
	}
	return p.respond(w, r, box, err)
}

func (p *plane) fork(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Name string `json:"name"`
	}
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	box, err := p.living(r)
	if err != nil {
		return err
	}
	children, err := p.cfg.Service.Fork(r.Context(), box.ID, sandbox.ForkRequest{Count: 1, Name: body.Name})
	if err == nil {
		box = &children.Items[0]
	}
	return p.respond(w, r, box, err)
}

// languageLabel tells clients which language their code runs in.
const languageLabel = "code-toolbox-language"

// setLabels replaces the labels. The one for the language stays unless it is replaced:
// clients cannot run code without it.
func (p *plane) setLabels(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Labels map[string]string `json:"labels"`
	}
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if err := checkLabels(body.Labels); err != nil {
		return err
	}
	box, err := p.living(r)
	if err != nil {
		return err
	}
	all := map[string]string{}
	for key, value := range box.Metadata {
		if strings.HasPrefix(key, access.HiddenPrefix) || key == languageLabel {
			all[key] = value
		}
	}
	maps.Copy(all, body.Labels)
	if box, err = p.cfg.Service.Update(r.Context(), box.ID, sandbox.UpdateRequest{Metadata: all}); err != nil {
		return about(r.PathValue("sandbox"), err)
	}
	answer.JSON(w, http.StatusOK, map[string]any{"labels": labelsOf(box)})
	return nil
}

func minutes(r *http.Request) (int64, error) {
	n, err := strconv.ParseInt(r.PathValue("minutes"), 10, 64)
	if err != nil || n > maxMinutes {
		return 0, answer.Invalid("%.20q is not a number of minutes up to %d", r.PathValue("minutes"), maxMinutes)
	}
	return n, nil
}

// times are the product's times of a sandbox, in minutes; ttl is from now.
type times struct{ idle, del, ttl int64 }

// setLife changes the times of a sandbox. Change gets those that it has and the minutes of
// the request, and returns the metadata that it has then.
func (p *plane) setLife(w http.ResponseWriter, r *http.Request, change func(box *sandbox.Sandbox, t *times, minutes int64) (map[string]string, error)) error {
	n, err := minutes(r)
	if err != nil {
		return err
	}
	box, err := p.living(r)
	if err != nil {
		return err
	}
	now := p.view(r, box)
	t := times{idle: now.AutoStopInterval + now.AutoPauseInterval, del: now.AutoDeleteInterval}
	if box.ExpiresAt != nil {
		t.ttl = max(0, int64(math.Ceil(box.ExpiresAt.Sub(p.now()).Minutes()))) // it may end this moment
	}
	had := t.ttl
	metadata, err := change(box, &t, n)
	if err != nil {
		return err
	}
	l, err := lifeOf(t.idle, t.del, t.ttl)
	if err != nil {
		return err
	}
	req := sandbox.UpdateRequest{Metadata: metadata, IdleTimeoutSeconds: &l.idle, PausedLifetimeSeconds: &l.paused, OnTimeout: &l.onTimeout}
	if t.ttl != had {
		req.LifetimeSeconds = &l.lifetime
	}
	box, err = p.cfg.Service.Update(r.Context(), box.ID, req)
	return p.respond(w, r, box, err)
}

func (p *plane) setAutoStop(w http.ResponseWriter, r *http.Request) error {
	return p.setLife(w, r, func(box *sandbox.Sandbox, t *times, n int64) (map[string]string, error) {
		t.idle = n
		return tagged(box, access.TagAutoPause, ""), nil
	})
}

func (p *plane) setAutoPause(w http.ResponseWriter, r *http.Request) error {
	return p.setLife(w, r, func(box *sandbox.Sandbox, t *times, n int64) (map[string]string, error) {
		if n > 0 && t.del == 0 {
			return nil, answer.Invalid("a sandbox that is deleted when it stops cannot be paused when it is idle; set its autoDeleteInterval first")
		}
		t.idle = n
		if n == 0 {
			return tagged(box, access.TagAutoPause, ""), nil
		}
		return tagged(box, access.TagAutoPause, "on"), nil
	})
}

func (p *plane) setAutoDelete(w http.ResponseWriter, r *http.Request) error {
	return p.setLife(w, r, func(box *sandbox.Sandbox, t *times, n int64) (map[string]string, error) {
		if t.del = max(n, -1); n == 0 {
			return tagged(box, access.TagEphemeral, "on"), nil
		}
		return tagged(box, access.TagEphemeral, ""), nil
	})
}

func (p *plane) setTTL(w http.ResponseWriter, r *http.Request) error {
	return p.setLife(w, r, func(box *sandbox.Sandbox, t *times, n int64) (map[string]string, error) {
		if t.ttl = n; n > 0 {
			left := box.CreatedAt.Add(time.Duration(n) * time.Minute).Sub(p.now())
			if left <= 0 {
				return nil, answer.Invalid("the sandbox is older than %d minutes; delete it, or give more", n)
			}
			t.ttl = int64(math.Ceil(left.Minutes()))
		}
		return box.Metadata, nil
	})
}

func (p *plane) setAutoArchive(w http.ResponseWriter, r *http.Request) error {
	n, err := minutes(r)
	if err != nil {
		return err
	}
	if n < 0 || n > access.MaxArchive {
		return answer.Invalid("autoArchiveInterval is %d; give 0 to %d minutes", n, access.MaxArchive)
	}
	box, err := p.living(r)
	if err == nil {
		box, err = p.tag(r.Context(), box, access.TagArchive, strconv.FormatInt(n, 10))
	}
	return p.respond(w, r, box, err)
}

// touch restarts the idle time of a running sandbox, as every call into it does.
func (p *plane) touch(w http.ResponseWriter, r *http.Request) error {
	box, err := p.living(r)
	if err != nil {
		return err
	}
	if box.State == sandbox.StateRunning {
		if _, err := p.cfg.Service.StatFile(r.Context(), box.ID, "/"); err != nil {
			return about(box.ID, err)
		}
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

// resize changes the resources of a sandbox.
func (p *plane) resize(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		CPU    float64 `json:"cpu"`
		Memory float64 `json:"memory"`
		Disk   float64 `json:"disk"`
	}
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if body.Disk != 0 {
		return answer.Refused("disk", "the disk of a sandbox keeps its size")
	}
	res, err := resources(body.CPU, body.Memory, 0)
	if err != nil {
		return err
	}
	var req sandbox.UpdateRequest
	if res.VCPUs > 0 {
		req.VCPUs = &res.VCPUs
	}
	if res.MemoryMiB > 0 {
		req.MemoryMiB = &res.MemoryMiB
	}
	box, err := p.living(r)
	if err == nil {
		box, err = p.cfg.Service.Update(r.Context(), box.ID, req)
	}
	return p.respond(w, r, box, err)
}

func (p *plane) toolboxURL(w http.ResponseWriter, r *http.Request) error {
	if _, err := p.find(r); err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, map[string]string{"url": p.cfg.Toolbox(r)})
	return nil
}
