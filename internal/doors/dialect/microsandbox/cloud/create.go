package cloud

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Words of a sandbox's description.
const (
	imageOCI        = "oci"
	mountNamed      = "named"
	mountTmpfs      = "tmpfs"
	statStrict      = "strict"
	permsPrivate    = "private"
	securityDefault = "default"
)

// maxName bounds a name, in bytes, as the product does.
const maxName = 128

// undoTime bounds the removal of a sandbox whose creation failed halfway.
const undoTime = 30 * time.Second

// checkLabels refuses labels that the door reserves for itself.
func checkLabels(labels map[string]string) error {
	for key := range labels {
		if strings.HasPrefix(key, hiddenPrefix) {
			return refused("labels", "those that begin with "+hiddenPrefix+" are Cove's own; choose another name for "+strconv.Quote(clip.Text(key, maxShown)))
		}
	}
	return nil
}

// check refuses fields that would have no effect, by name.
func (b *spec) check() error {
	switch {
	case b.Name == "" || len(b.Name) > maxName || !utf8.ValidString(b.Name) || strings.ContainsFunc(b.Name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return refused("name", "a sandbox has a name of 1 to "+strconv.Itoa(maxName)+" bytes without control characters")
	case strings.HasPrefix(b.Name, "sbx-"):
		return refused("name", "names that begin with sbx- are ids of Cove's; choose another")
	case b.Image == nil || b.Image.Reference == "" && b.Image.Type == imageOCI:
		return refused("image", "name an image")
	case b.Image.Type != imageOCI || len(b.Image.Path) > 0:
		return refused("image", "Cove makes sandboxes from OCI images and its own templates; directories and disk images are on no machine that it sees")
	case len(b.Runtime.Scripts) > 0:
		return refused("runtime.scripts", "Cove keeps no scripts beside a sandbox; write them with a patch")
	case b.Runtime.LogLevel != nil:
		return refused("runtime.log_level", "there is one level of Cove's log, which is its operator's")
	case len(b.Rlimits) > 0:
		return refused("rlimits", "Cove limits a sandbox by its resources, and no single process")
	case len(b.Init) > 0:
		return refused("init", "a sandbox's first process is Cove's own; start others with a command")
	case b.Security != "" && b.Security != securityDefault:
		return refused("security_profile", "there is one profile, "+securityDefault)
	case b.Slug != "":
		return refused("slug", "it is the sandbox's id; leave it out")
	case b.Registry != nil && (b.Registry.Mode != "anonymous" && b.Registry.Mode != "auto" || len(b.Registry.User)+len(b.Registry.Password)+len(b.Registry.Credential) > 0):
		return refused("registry", "Cove pulls with the credentials of its operator; have the image built with: cove template build")
	}
	return checkLabels(b.Labels)
}

// request translates a description into Cove's terms, except for what the sandbox is made
// from.
func (b *spec) request() (*sandbox.CreateRequest, error) {
	req := &sandbox.CreateRequest{
		Metadata:  map[string]string{},
		Resources: sandbox.Resources{VCPUs: b.Resources.VCPUs, MemoryMiB: b.Resources.Memory, DiskMiB: b.Resources.Disk},
		Env:       map[string]string{}, LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64),
	}
	maps.Copy(req.Metadata, b.Labels)
	for _, v := range b.Env {
		if _, twice := req.Env[v.Key]; twice {
			return nil, refused("env", strconv.Quote(clip.Text(v.Key, maxShown))+" is given twice")
		}
		req.Env[v.Key] = v.Value
	}
	if b.Runtime.WorkDir != nil {
		req.WorkDir = *b.Runtime.WorkDir
	}
	if b.Runtime.User != nil {
		req.User = *b.Runtime.User
	}
	b.tag(req.Metadata)
	for _, t := range []struct {
		name string
		from *int64
		to   *int64
	}{{"lifecycle.max_duration_secs", b.Lifecycle.MaxDuration, req.LifetimeSeconds}, {"lifecycle.idle_timeout_secs", b.Lifecycle.IdleTimeout, req.IdleTimeoutSeconds}} {
		if t.from == nil {
			continue
		}
		if *t.from < 1 {
			return nil, refused(t.name, "give at least 1, or leave it out")
		}
		*t.to = *t.from
		if !b.Lifecycle.Ephemeral {
			req.OnTimeout = sandbox.ActionPause
		}
	}
	for i := range b.Mounts {
		m, err := b.Mounts[i].mapped()
		if err != nil {
			return nil, err
		}
		req.Mounts = append(req.Mounts, m)
	}
	var err error
	req.Network, err = b.Network.mapped()
	return req, err
}

// tag adds tags for what Cove has no field for.
func (b *spec) tag(tags map[string]string) {
	tags[tagImage] = b.Image.Reference
	if b.Runtime.Shell != nil {
		tags[tagShell] = *b.Runtime.Shell
	}
	if len(b.Runtime.Entrypoint)+len(b.Runtime.Cmd) > 0 {
		text, _ := json.Marshal(command{b.Runtime.Entrypoint, b.Runtime.Cmd}) // only texts, which cannot fail
		tags[tagRun] = string(text)
	}
	if b.Lifecycle.Ephemeral {
		tags[tagEphemeral] = "on"
	}
}

func (m *mount) mapped() (sandbox.Mount, error) {
	out := sandbox.Mount{Target: m.Guest, ReadOnly: m.Options.ReadOnly}
	switch {
	case m.Type != mountNamed && m.Type != mountTmpfs:
		return out, refused("mounts", "a mount of type "+strconv.Quote(clip.Text(m.Type, maxShown))+" would show a file of another machine; mount a named volume, or copy files into the sandbox")
	case len(m.Host)+len(m.Format)+len(m.FSType)+len(m.Quota) > 0:
		return out, refused("mounts", "host, format, fstype and quota_mib are of mounts that Cove does not have")
	case m.Options.NoExec || m.Options.NoSUID || m.Options.NoDev:
		return out, refused("mounts.options", "Cove enforces readonly alone; leave out noexec, nosuid and nodev")
	case m.Stat != "" && m.Stat != statStrict:
		return out, refused("mounts.stat_virtualization", "owners and modes in a volume are the sandbox's own: "+statStrict)
	case m.Perms != "" && m.Perms != permsPrivate:
		return out, refused("mounts.host_permissions", "files of a volume are no other program's: "+permsPrivate)
	case m.Type == mountTmpfs && m.Name != "", m.Type == mountNamed && (m.Name == "" || m.Size != 0):
		return out, refused("mounts", "a named volume has a name, and a tmpfs a size")
	}
	out.Volume, out.Tmpfs, out.SizeMiB = m.Name, m.Type == mountTmpfs, m.Size
	return out, nil
}

// waits are a client's options for waiting for a new sandbox.
type waits struct {
	start bool
	limit time.Duration
}

// maxWait is the longest wait, and what clients request.
const maxWait = 90 * time.Second

func readWaits(r *http.Request) (waits, error) {
	v := waits{limit: maxWait}
	for name, values := range r.URL.Query() {
		text := values[0]
		switch {
		case len(values) > 1:
			return v, invalid("%.64q is given twice; give it once", name)
		case name == "start" && (text == "true" || text == "false"):
			v.start = text == "true"
		case name == "wait_for" && text == statusRunning:
		case name == "wait_timeout":
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				return v, invalid("wait_timeout is %.20q; give seconds", text)
			}
			v.limit = min(time.Duration(n)*time.Second, maxWait)
		default:
			return v, invalid("%.64q: Cove does not know this parameter or its value; leave it out", name)
		}
	}
	return v, nil
}

func (d *Door) create(w http.ResponseWriter, r *http.Request, _ []string) error {
	wait, err := readWaits(r)
	if err != nil {
		return err
	}
	body := spec{Network: network{Enabled: true}}
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	if body.Lifecycle.Ephemeral && !wait.start {
		return refused("lifecycle.ephemeral", "a sandbox that is gone when it stops has to be started with its creation")
	}
	if err := checkPatches(body.Patches); err != nil {
		return err
	}
	req, err := body.request()
	if err != nil {
		return err
	}
	if err := d.bind(r.Context(), body.Network.Secrets, req); err != nil {
		return err
	}
	if err := d.choose(r.Context(), &body, req, wait.limit); err != nil {
		return err
	}
	s, err := d.named(r.Context(), body.Name, req)
	if err != nil {
		return err
	}
	if s, err = d.finish(r.Context(), s, &body, wait.start); err != nil {
		return err
	}
	writeJSON(w, view(s))
	return nil
}

// named makes a sandbox under a name that no other has.
func (d *Door) named(ctx context.Context, name string, req *sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	if dialect.IsName(name) {
		req.Name = name
		s, err := d.cfg.Service.Create(ctx, *req)
		return s, aboutName(err)
	}
	if _, err := d.find(ctx, name); err == nil {
		return nil, aboutName(sandbox.Errorf(sandbox.CodeConflict, "a sandbox named %q is there already; remove it or choose another name", clip.Text(name, maxShown)))
	} else if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return nil, err
	}
	req.Metadata[tagName] = name
	return d.cfg.Service.Create(ctx, *req)
}

// finish completes a new sandbox, and removes it if that fails.
func (d *Door) finish(ctx context.Context, s *sandbox.Sandbox, body *spec, start bool) (_ *sandbox.Sandbox, err error) {
	id := s.ID
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if _, killErr := d.cfg.Service.Kill(ctx, id); killErr != nil {
			d.cfg.Log.WarnContext(ctx, "remove a sandbox that could not be finished", "sandbox", id, "error", killErr)
		}
	}()
	if err := d.applyPatches(ctx, id, body.Patches); err != nil {
		return nil, err
	}
	if start {
		return s, nil
	}
	tags := map[string]string{tagCreated: "on"}
	maps.Copy(tags, s.Metadata)
	if _, err := d.cfg.Service.Update(ctx, id, sandbox.UpdateRequest{Metadata: tags}); err != nil {
		return nil, err
	}
	return d.cfg.Service.Pause(ctx, id)
}
