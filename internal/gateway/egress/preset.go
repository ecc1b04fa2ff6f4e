package egress

import (
	"errors"

	"github.com/cove-sh/cove/sandbox"
)

// packageHosts are the hosts of the preset "packages": package registries and code hosts,
// which SSH may connect to as well. "*." stands for names of any depth. The preset does
// not prevent exfiltration to these hosts: anyone who may publish a package or push to a
// repository can send data there.
var packageHosts = []struct {
	of    string
	ports []string
	hosts []string
}{
	{"Python", webPorts, []string{"pypi.org", "*.pypi.org", "files.pythonhosted.org", "pypi.python.org", "bootstrap.pypa.io", "repo.anaconda.com", "conda.anaconda.org", "*.anaconda.org", "download.pytorch.org"}},
	{"JavaScript", webPorts, []string{"registry.npmjs.org", "*.npmjs.org", "npmjs.com", "registry.yarnpkg.com", "yarnpkg.com", "repo.yarnpkg.com", "jsr.io", "npm.jsr.io", "deno.land", "nodejs.org", "registry.bower.io"}},
	{"Rust", webPorts, []string{"crates.io", "index.crates.io", "static.crates.io", "static.rust-lang.org", "sh.rustup.rs"}},
	{"Go", webPorts, []string{"proxy.golang.org", "sum.golang.org", "index.golang.org", "storage.googleapis.com", "go.dev", "golang.org", "gopkg.in", "dl.google.com"}},
	{"Ruby", webPorts, []string{"rubygems.org", "*.rubygems.org", "index.rubygems.org"}},
	{"Java", webPorts, []string{"repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org", "downloads.gradle.org", "maven.google.com"}},
	{".NET", webPorts, []string{"api.nuget.org", "www.nuget.org", "globalcdn.nuget.org"}},
	{"PHP", webPorts, []string{"packagist.org", "repo.packagist.org", "getcomposer.org"}},
	{"Others", webPorts, []string{"cpan.org", "www.cpan.org", "cran.r-project.org", "cloud.r-project.org", "hackage.haskell.org", "hex.pm", "repo.hex.pm", "builds.hex.pm", "pub.dev", "registry.terraform.io", "releases.hashicorp.com"}},
	{"Debian", webPorts, []string{"deb.debian.org", "security.debian.org", "ftp.debian.org", "cdn-fastly.deb.debian.org", "snapshot.debian.org"}},
	{"Ubuntu", webPorts, []string{"archive.ubuntu.com", "*.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com", "ppa.launchpadcontent.net", "keyserver.ubuntu.com"}},
	{"Alpine", webPorts, []string{"dl-cdn.alpinelinux.org", "*.alpinelinux.org"}},
	{"Fedora", webPorts, []string{"mirrors.fedoraproject.org", "dl.fedoraproject.org", "download.fedoraproject.org"}},
	{"GitHub", codePorts, []string{"github.com", "api.github.com", "codeload.github.com", "ssh.github.com", "uploads.github.com", "*.githubusercontent.com", "*.githubassets.com", "ghcr.io", "npm.pkg.github.com", "maven.pkg.github.com"}},
	{"GitLab", codePorts, []string{"gitlab.com", "*.gitlab.com", "registry.gitlab.com"}},
	{"Bitbucket", codePorts, []string{"bitbucket.org", "*.bitbucket.org"}},
	{"Codeberg", codePorts, []string{"codeberg.org"}},
	{"Container images", webPorts, []string{"docker.io", "*.docker.io", "production.cloudflare.docker.com", "download.docker.com", "quay.io", "*.quay.io", "gcr.io", "*.gcr.io", "registry.k8s.io", "mcr.microsoft.com", "*.data.mcr.microsoft.com", "public.ecr.aws"}},
}

var (
	webPorts  = []string{"80", "443"}
	codePorts = []string{"22", "80", "443"}
)

func packageRules() []*rule {
	var rules []*rule
	for _, group := range packageHosts {
		for _, h := range group.hosts {
			r := &rule{text: "preset packages " + h, allow: true}
			if err := errors.Join(parseTarget(h, r), parseFilter(sandbox.NetworkRule{Protocol: "tcp", Ports: group.ports}, r)); err != nil {
				panic("preset packages: " + err.Error())
			}
			rules = append(rules, r)
		}
	}
	return rules
}
