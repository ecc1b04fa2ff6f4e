// Command cove-kubernetes serves the objects of agents.x-k8s.io and
// extensions.agents.x-k8s.io by Cove: it watches them, and makes sandboxes of Cove for
// them by its REST interface. It is a module of its own, so that the libraries of
// Kubernetes are no part of cove.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/deploy/controller/internal/controllers"
)

type options struct {
	url, keyFile, metrics, health, leaderNamespace string
	lead                                           bool
	templates                                      templates
}

// templates are flags IMAGE=TEMPLATE.
type templates map[string]string

// String shows nothing: there is no default.
func (templates) String() string { return "" }

// Set takes one flag.
func (t templates) Set(s string) error {
	i := strings.LastIndex(s, "=")
	if i <= 0 || i == len(s)-1 {
		return errors.New("use IMAGE=TEMPLATE")
	}
	t[s[:i]] = s[i+1:]
	return nil
}

func main() {
	o := options{templates: templates{}}
	flag.StringVar(&o.url, "cove-url", "http://cove.cove.svc:7777", "address of Cove's server")
	flag.StringVar(&o.keyFile, "cove-key-file", "", "file with an API key that has the scopes sandboxes:write, files:write and templates:write; read again for each request")
	flag.Var(o.templates, "template", "IMAGE=TEMPLATE: use this template of Cove in place of an image; may be repeated")
	flag.StringVar(&o.metrics, "metrics-listen", "0", "address for metrics, such as :8080; 0 serves none")
	flag.StringVar(&o.health, "health-listen", "0", "address for /healthz and /readyz, such as :8081; 0 serves none")
	flag.BoolVar(&o.lead, "leader-elect", false, "wait until no other controller works; for more than one replica")
	flag.StringVar(&o.leaderNamespace, "leader-elect-namespace", "", "namespace of the lease; that of the Pod if empty")
	flag.Parse() // with --kubeconfig of controller-runtime
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		log.Error("the controller has ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.keyFile == "" {
		return errors.New("name a file with an API key of Cove: --cove-key-file FILE")
	}
	cove, err := client.New(client.Config{URL: o.url, HTTPClient: &http.Client{Transport: &keyed{o.keyFile}}, UserAgent: "cove-kubernetes"})
	if err != nil {
		return err
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: controllers.Scheme(), Metrics: metrics.Options{BindAddress: o.metrics}, HealthProbeBindAddress: o.health,
		LeaderElection: o.lead, LeaderElectionID: "cove-kubernetes", LeaderElectionNamespace: o.leaderNamespace, LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	if err := controllers.Setup(mgr, cove, o.templates); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// keyed adds the key of a file to requests. The file is read each time, so that a key can
// be replaced.
type keyed struct{ file string }

// RoundTrip sends a request.
func (k *keyed) RoundTrip(req *http.Request) (*http.Response, error) {
	key, err := os.ReadFile(k.file)
	if err != nil {
		return nil, fmt.Errorf("read the key of Cove: %w", err)
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	return http.DefaultTransport.RoundTrip(req)
}
