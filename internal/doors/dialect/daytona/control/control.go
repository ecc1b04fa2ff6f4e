// Package control is Daytona's control plane: REST with an API key. The context of a
// request carries its caller, unless the request is [Open].
package control

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// Config configures the plane. All fields are required.
type Config struct {
	Service sandbox.Service
	Gate    *gate.Gate
	// Control and Toolbox are the URLs at which the client of a request finds this
	// plane, and toolboxes.
	Control, Toolbox func(*http.Request) string
	Log              *slog.Logger
}

type plane struct {
	cfg Config
	now func() time.Time
}

// target is the region of all sandboxes.
const target = "local"

// New returns the handler of the plane.
func New(cfg Config) http.Handler {
	p := &plane{cfg, time.Now}
	rt := answer.NewRouter(answer.Control, cfg.Log)
	rt.On("GET /health", p.health)
	rt.On("GET /config", p.config)
	rt.On("/socket.io/", noSocket)
	p.sandboxRoutes(rt)
	p.snapshotRoutes(rt)
	rt.On("GET /volumes", p.listVolumes)
	rt.On("POST /volumes", p.createVolume)
	rt.On("GET /volumes/by-name/{volume}", p.getVolume)
	rt.On("GET /volumes/{volume}", p.getVolume)
	rt.On("DELETE /volumes/{volume}", p.deleteVolume)
	rt.On("GET /secret/paginated", p.listSecrets)
	rt.On("POST /secret", p.createSecret)
	rt.On("GET /secret/{secret}", p.getSecret)
	rt.On("PATCH /secret/{secret}", p.updateSecret)
	rt.On("DELETE /secret/{secret}", p.deleteSecret)
	return rt
}

func (p *plane) sandboxRoutes(rt *answer.Router) {
	rt.On("POST /sandbox", p.create)
	rt.On("GET /sandbox", p.list)
	rt.On("GET /sandbox/{sandbox}", p.get)
	rt.On("DELETE /sandbox/{sandbox}", p.destroy)
	rt.On("POST /sandbox/{sandbox}/start", p.start)
	rt.On("POST /sandbox/{sandbox}/stop", p.stop)
	rt.On("POST /sandbox/{sandbox}/pause", p.pause)
	rt.On("POST /sandbox/{sandbox}/archive", p.archive)
	rt.On("POST /sandbox/{sandbox}/fork", p.fork)
	rt.On("POST /sandbox/{sandbox}/snapshot", p.snapshot)
	rt.On("POST /sandbox/{sandbox}/resize", p.resize)
	rt.On("POST /sandbox/{sandbox}/network-settings", p.setNetwork)
	rt.On("PUT /sandbox/{sandbox}/labels", p.setLabels)
	rt.On("PUT /sandbox/{sandbox}/secrets", p.setSecrets)
	rt.On("POST /sandbox/{sandbox}/autostop/{minutes}", p.setAutoStop)
	rt.On("POST /sandbox/{sandbox}/autopause/{minutes}", p.setAutoPause)
	rt.On("POST /sandbox/{sandbox}/autodelete/{minutes}", p.setAutoDelete)
	rt.On("POST /sandbox/{sandbox}/autoarchive/{minutes}", p.setAutoArchive)
	rt.On("POST /sandbox/{sandbox}/ttl/{minutes}", p.setTTL)
	rt.On("POST /sandbox/{sandbox}/last-activity", p.touch)
	rt.On("GET /sandbox/{sandbox}/toolbox-proxy-url", p.toolboxURL)
	rt.On("GET /sandbox/{sandbox}/ports/{port}/preview-url", p.previewURL)
	rt.On("GET /sandbox/{sandbox}/ports/{port}/signed-preview-url", p.signedPreviewURL)
	rt.On("GET /sandbox/{sandbox}/signing-key", p.signingKey)
}

// Open reports whether a request needs no key: it checks that the server answers, or
// opens the socket of events, which does not exist here.
func Open(r *http.Request) bool {
	return r.URL.Path == "/health" || r.URL.Path == "/socket.io/" || r.URL.Path == "/socket.io"
}

// noSocket refuses the socket of events: clients then ask for the state of a sandbox.
func noSocket(http.ResponseWriter, *http.Request) error {
	return answer.Fail(http.StatusNotFound, "NOT_FOUND", "Cove sends no events; ask for the state of a sandbox")
}

func (p *plane) health(w http.ResponseWriter, _ *http.Request) error {
	answer.JSON(w, http.StatusOK, map[string]string{"status": "ok"})
	return nil
}

func (p *plane) config(w http.ResponseWriter, r *http.Request) error {
	answer.JSON(w, http.StatusOK, map[string]string{"proxyToolboxUrl": p.cfg.Toolbox(r), "version": "cove"})
	return nil
}
