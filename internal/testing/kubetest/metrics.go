package kubetest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	// adapterPort is that of the adapter at [ControlAddress], and prometheusAddress where
	// Prometheus answers the adapter.
	adapterPort       = 6444
	prometheusAddress = "127.0.0.1:9090"
	// adapterName is the Service by which the API server reaches the adapter.
	adapterName = "external-metrics"
)

// ServeMetrics has the API server answer for external metrics, as autoscalers ask: Prometheus
// reads the metrics, and prometheus-adapter answers from it. They run beside the control plane,
// with these configurations, until the cluster is closed. The adapter is built from the module
// test/kube/adapter of the tree root once; Prometheus is Debian's, which
// scripts/install-kube-deps has unpacked or installed.
func (c *Cluster) ServeMetrics(ctx context.Context, root, scrape, rules string) error {
	prometheus, err := findPrometheus()
	if err != nil {
		return err
	}
	adapter, err := buildAdapter(ctx, root)
	if err != nil {
		return err
	}
	dir, f := filepath.Join(c.cfg.Dir, "metrics"), c.pki.file
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "log"), 0o755),
		os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(scrape), 0o600),
		os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(rules), 0o600),
		c.pki.issue(adapterName, adapterName, "", []string{adapterName + ".kube-system.svc"}),
	); err != nil {
		return err
	}
	if err := c.beside(dir, prometheus, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddress); err != nil {
		return err
	}
	if err := c.beside(dir, adapter, "--lister-kubeconfig="+c.admin, "--authentication-kubeconfig="+c.admin, "--authorization-kubeconfig="+c.admin,
		"--prometheus-url=http://"+prometheusAddress, "--metrics-relist-interval=2s", "--config="+filepath.Join(dir, "rules.yml"),
		fmt.Sprintf("--secure-port=%d", adapterPort), "--tls-cert-file="+f(adapterName+".crt"), "--tls-private-key-file="+f(adapterName+".key")); err != nil {
		return err
	}
	ca, err := os.ReadFile(f("ca.crt"))
	if err != nil {
		return err
	}
	if err := c.Kubectl(ctx, strings.NewReader(fmt.Sprintf(adapterService, base64.StdEncoding.EncodeToString(ca), ControlAddress, adapterPort)), io.Discard, "apply", "-f", "-"); err != nil {
		return err
	}
	return c.await(ctx, "the adapter of metrics", func() error {
		return c.Kubectl(ctx, nil, io.Discard, "wait", "--for=condition=Available", "--timeout=1s", "apiservice/v1beta1.external.metrics.k8s.io")
	})
}

// adapterService says where the API server finds external metrics. It has the certificate of the
// adapter's authority, the address and the port.
const adapterService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: %s
  service: {name: external-metrics, namespace: kube-system, port: 443}
---
apiVersion: v1
kind: Service
metadata: {name: external-metrics, namespace: kube-system}
spec:
  ports: [{name: https, port: 443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: external-metrics, namespace: kube-system, labels: {kubernetes.io/service-name: external-metrics}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: https, port: %d}]
`

// beside runs a program in the network of the control plane until the cluster is closed.
func (c *Cluster) beside(dir, program string, args ...string) error {
	log, err := os.Create(filepath.Join(dir, "log", filepath.Base(program)+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := c.Command(context.Background(), append([]string{program}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	c.helpers = append(c.helpers, cmd)
	return nil
}

// stopHelpers ends what runs beside the control plane.
func (c *Cluster) stopHelpers() {
	for _, cmd := range c.helpers {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// findPrometheus returns the program that is installed, or that scripts/install-kube-deps has
// unpacked.
func findPrometheus() (string, error) {
	if path, err := exec.LookPath("prometheus"); err == nil {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "cove-kube", "prometheus", "usr", "bin", "prometheus")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("there is no Prometheus (%w); run scripts/install-kube-deps", err)
	}
	return path, nil
}
