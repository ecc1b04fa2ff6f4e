package kubetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// version is that of Kubernetes in test/kube/build/kubernetes/go.mod.
const version = "v1.36.3"

// parts are the names by which the program kubernetes is called.
var parts = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"}

// builds are the programs of a cluster: what the modules below test/kube/build build.
var builds = []struct {
	module   string
	cgo      string
	tags     string
	flags    string
	packages []string
}{
	{"kubernetes", "0", "", "-s -w -X k8s.io/component-base/version.gitVersion=" + version + " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitVersion=" + version, []string{"."}},
	{"containerd", "0", "no_btrfs no_devmapper no_zfs", "-s -w -X github.com/containerd/containerd/v2/version.Version=2.2.9", []string{
		"github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/ctr",
	}},
	{"containerd", "0", "", "-s -w", []string{
		"github.com/containernetworking/plugins/plugins/ipam/host-local", "github.com/containernetworking/plugins/plugins/main/bridge",
		"github.com/containernetworking/plugins/plugins/main/loopback", "github.com/containernetworking/plugins/plugins/meta/portmap",
	}},
	{"runc", "1", "seccomp", "-s -w", []string{"github.com/opencontainers/runc"}},
	{"pause", "0", "", "-s -w", []string{"."}},
}

// Build builds the programs of a cluster from the modules below test/kube/build of a tree,
// and returns the directory that they are in. It is in the user's cache, named after what
// the modules require, so that programs are built once.
func Build(ctx context.Context, root string) (dir string, err error) {
	modules := filepath.Join(root, "test", "kube", "build")
	key, err := keyOf(filepath.Join(modules, "*", "*"))
	if err != nil {
		return "", err
	}
	return cached(key, func(temp string) error { return buildCluster(ctx, modules, temp) })
}

// buildAdapter builds the adapter of metrics as [Build] builds a cluster, and returns its path.
func buildAdapter(ctx context.Context, root string) (string, error) {
	module := filepath.Join(root, "test", "kube", "adapter")
	key, err := keyOf(filepath.Join(module, "*"))
	if err != nil {
		return "", err
	}
	dir, err := cached("adapter-"+key, func(temp string) error {
		return goBuild(ctx, module, "0", "-trimpath", "-ldflags", "-s -w", "-o", temp+"/", "sigs.k8s.io/prometheus-adapter/cmd/adapter")
	})
	return filepath.Join(dir, "adapter"), err
}

// goBuild builds programs of a module.
func goBuild(ctx context.Context, module, cgo string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build"}, args...)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", filepath.Base(module), err, out)
	}
	return nil
}

// cached returns the directory in the user's cache that build has filled. It is filled once.
func cached(name string, build func(temp string) error) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "cove-kube", name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	if err := build(temp); err != nil {
		return "", err
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", err
	}
	err = os.Rename(temp, dir)
	if errors.Is(err, fs.ErrExist) {
		err = nil // another has built the same
	}
	return dir, err
}

// buildCluster builds the programs of a cluster.
func buildCluster(ctx context.Context, modules, temp string) error {
	for _, b := range builds {
		args := append([]string{"-trimpath", "-tags", b.tags, "-ldflags", b.flags, "-o", temp + "/"}, b.packages...)
		if err := goBuild(ctx, filepath.Join(modules, b.module), b.cgo, args...); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if err := os.Symlink("kubernetes", filepath.Join(temp, p)); err != nil {
			return err
		}
	}
	return pauseImage(filepath.Join(temp, "pause"), filepath.Join(temp, "pause.tar"))
}

// keyOf names what modules build, whose files match a pattern.
func keyOf(pattern string) (string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %x\n", filepath.Base(file), sha256.Sum256(data))
	}
	fmt.Fprint(sum, builds)
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// pauseImage writes the image of each Pod's first process.
func pauseImage(program, out string) error {
	data, err := tarOf(program)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromReader(bytes.NewReader(data)) //nolint:staticcheck // it is in memory
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config = "linux", "amd64", v1.Config{Entrypoint: []string{"/" + filepath.Base(program)}, User: "65535:65535"}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return err
	}
	tag, err := name.NewTag(pause)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, tag, img)
}

// tarOf packs one file.
func tarOf(file string) ([]byte, error) {
	out, err := exec.Command("tar", "-C", filepath.Dir(file), "-cf", "-", "--owner=0", "--group=0", filepath.Base(file)).Output()
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", strings.TrimSpace(file), err)
	}
	return out, nil
}
