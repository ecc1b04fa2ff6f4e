package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// buildInfo is a Dockerfile.
type buildInfo struct {
	Dockerfile string          `json:"dockerfileContent"`
	Contexts   json.RawMessage `json:"contextHashes"`
}

// spec is the specification of what the Dockerfile builds.
func (b *buildInfo) spec() (*sandbox.TemplateSpec, error) {
	if answer.Given(b.Contexts) {
		return nil, answer.Refused("buildInfo.contextHashes", "there is no object store for files of a build")
	}
	return parseDockerfile(b.Dockerfile)
}

// plainImage returns the image of a specification that only names one.
func plainImage(spec *sandbox.TemplateSpec) (image string, ok bool) {
	return spec.From.Image, spec.BuildNetwork == nil
}

// templateOf is the name of the template that is made of an image or a Dockerfile for
// sandboxes that name no snapshot.
func templateOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "image-" + hex.EncodeToString(sum[:12])
}

// fromImage makes a sandbox's template from an image or a Dockerfile, unless there is one.
func (p *plane) fromImage(ctx context.Context, body *createBody, req *sandbox.CreateRequest) error {
	spec, err := body.BuildInfo.spec()
	if err != nil {
		return err
	}
	if req.Resources, err = resources(body.CPU, body.Memory, body.Disk); err != nil {
		return err
	}
	image, plain := plainImage(spec)
	if plain {
		req.Template = templateOf(image)
		req.Metadata[access.TagSnapshot] = image
	} else {
		req.Template = templateOf(body.BuildInfo.Dockerfile)
		req.Metadata[access.TagSnapshot] = req.Template
	}
	t, err := p.cfg.Service.GetTemplate(ctx, req.Template)
	if err == nil && t.State == sandbox.TemplateReady {
		return nil
	}
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return err
	}
	build, err := p.cfg.Service.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: req.Template, Spec: spec})
	if err != nil {
		return err
	}
	// The build continues if the client does not wait that long; another call finds its
	// result.
	build, err = p.cfg.Service.FollowBuild(ctx, build.ID, func(sandbox.BuildEvent) error { return nil })
	if err == nil && build.State != sandbox.BuildReady {
		err = answer.Fail(http.StatusBadRequest, "BUILD_FAILED", "the image %.80s cannot be used: %s", image, build.Reason)
	}
	return err
}

// snapshotBody describes a snapshot to be made of an image.
type snapshotBody struct {
	Name         string          `json:"name"`
	ImageName    string          `json:"imageName"`
	Entrypoint   []string        `json:"entrypoint"`
	BuildInfo    *buildInfo      `json:"buildInfo"`
	CPU          float64         `json:"cpu"`
	Memory       float64         `json:"memory"`
	Disk         float64         `json:"disk"`
	RegionID     string          `json:"regionId"`
	SandboxClass string          `json:"sandboxClass"`
	General      bool            `json:"general"`
	GPU          json.RawMessage `json:"gpu"`
	GPUType      json.RawMessage `json:"gpuType"`
}

func (b *snapshotBody) spec() (*sandbox.TemplateSpec, error) {
	switch {
	case answer.Given(b.GPU) || answer.Given(b.GPUType):
		return nil, answer.Refused("gpu", "there are no GPUs")
	case b.RegionID != "" && b.RegionID != target:
		return nil, answer.Refused("regionId", "there are no regions; leave it out and unset DAYTONA_TARGET")
	case b.SandboxClass != "" && b.SandboxClass != class:
		return nil, answer.Refused("sandboxClass", "there is one class, "+class)
	case (b.ImageName == "") == (b.BuildInfo == nil):
		return nil, answer.Invalid("give imageName or buildInfo, one of them")
	}
	spec := &sandbox.TemplateSpec{Description: "The image " + b.ImageName, From: sandbox.TemplateSource{Image: b.ImageName}}
	var err error
	if b.BuildInfo != nil {
		if spec, err = b.BuildInfo.spec(); err != nil {
			return nil, err
		}
	}
	if len(b.Entrypoint) > 0 {
		spec.Start = &sandbox.StartCommand{Command: shellQuote(b.Entrypoint)}
	}
	spec.Resources, err = resources(b.CPU, b.Memory, b.Disk)
	return spec, err
}

// shellQuote writes a command as a line for a shell.
func shellQuote(command []string) string {
	quoted := make([]string, len(command))
	for i, arg := range command {
		quoted[i] = dialect.Quote(arg)
	}
	return "exec " + strings.Join(quoted, " ")
}

// createSnapshot begins to make a template from an image; clients poll until it exists.
func (p *plane) createSnapshot(w http.ResponseWriter, r *http.Request) error {
	var body snapshotBody
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	spec, err := body.spec()
	if err != nil {
		return err
	}
	if err := p.mustBeFree(r.Context(), body.Name); err != nil {
		return err
	}
	build, err := p.cfg.Service.StartBuild(r.Context(), sandbox.BuildTemplateRequest{Name: body.Name, Spec: spec})
	if err != nil {
		return err
	}
	o := snapshotObject{
		ID: body.Name, Name: body.Name, State: "building", General: true, Entrypoint: body.Entrypoint, CPU: spec.Resources.VCPUs,
		Mem: gib(spec.Resources.MemoryMiB), Disk: gib(spec.Resources.DiskMiB), CreatedAt: build.CreatedAt, UpdatedAt: build.CreatedAt,
	}
	answer.JSON(w, http.StatusOK, o)
	return nil
}

// build returns the newest build of a name.
func (p *plane) build(ctx context.Context, name string) (*sandbox.Build, error) {
	list, err := p.cfg.Service.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: name, Page: sandbox.Page{Limit: 1}})
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid || err == nil && len(list.Items) == 0 {
		return nil, noSnapshot(name)
	}
	if err != nil {
		return nil, err
	}
	return &list.Items[0], nil
}

// unready returns the running or failed build of a snapshot that does not exist yet.
func (p *plane) unready(ctx context.Context, name string) (*sandbox.Build, error) {
	b, err := p.build(ctx, name)
	if err == nil && (b.State == sandbox.BuildReady || b.State == sandbox.BuildCancelled) {
		return nil, noSnapshot(name) // it was deleted since
	}
	return b, err
}

func viewBuild(name string, b *sandbox.Build) snapshotObject {
	o := snapshotObject{ID: name, Name: name, General: true, State: "building", CreatedAt: b.CreatedAt, UpdatedAt: b.CreatedAt}
	if b.State == sandbox.BuildFailed {
		o.State, o.ErrorReason = "build_failed", &b.Reason
	}
	return o
}

// cancelBuild ends the build of a snapshot that does not exist yet. A failed build leaves
// nothing to delete.
func (p *plane) cancelBuild(ctx context.Context, name string) error {
	b, err := p.unready(ctx, name)
	if err == nil {
		_, err = p.cfg.Service.CancelBuild(ctx, b.ID)
	}
	return err
}

func (p *plane) buildLogsURL(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("snapshot")
	if _, err := p.build(r.Context(), name); err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, map[string]string{"url": p.cfg.Control(r) + "/snapshots/" + url.PathEscape(name) + "/build-logs"})
	return nil
}

// buildLogs sends the log of the newest build as text, until it has ended.
func (p *plane) buildLogs(w http.ResponseWriter, r *http.Request) error {
	b, err := p.build(r.Context(), r.PathValue("snapshot"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	rc, step := http.NewResponseController(w), ""
	_, err = p.cfg.Service.FollowBuild(r.Context(), b.ID, func(e sandbox.BuildEvent) error {
		text := e.Log
		if e.Step != step {
			step = e.Step
			text = strings.TrimSuffix(step+"\n"+text, "\n")
		}
		if text == "" {
			return nil
		}
		if _, err := io.WriteString(w, text+"\n"); err != nil {
			return err
		}
		return rc.Flush()
	})
	if err != nil {
		panic(http.ErrAbortHandler) // the answer has begun
	}
	return nil
}
