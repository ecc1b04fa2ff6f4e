package image

import (
	"cmp"
	_ "embed" // the script
	"fmt"
	"maps"

	"github.com/cove-sh/cove/sandbox"
)

// desktopScript starts a screen with whatever X programs are installed.
//
//go:embed desktop.sh
var desktopScript string

// The shells of a screen: what it shows before a program is started.
const (
	shellDesktop = "desktop"
	shellBrowser = "browser"
)

// defaultDisplay is the X display of computers.
const defaultDisplay = ":1"

// The screen of the built-in computers has the size to which most vendors of models
// scale screenshots.
const screenWidth, screenHeight = 1280, 800

// startDesktop returns the command that starts a screen in any image with an X server:
// Xvnc, which the live view also needs, or Xvfb.
func startDesktop(d *sandbox.Desktop, shell string) *sandbox.StartCommand {
	return &sandbox.StartCommand{
		Command: fmt.Sprintf("export COVE_SCREEN=%dx%d COVE_SHELL=%s DISPLAY=%s\n%s", d.Width, d.Height, shell, cmp.Or(d.Display, defaultDisplay), desktopScript),
		Ready:   "test -e /tmp/.cove-desktop/ready",
	}
}

// desktopEnv is the environment in which programs find the screen.
func desktopEnv(env map[string]string, d *sandbox.Desktop) map[string]string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	if env["DISPLAY"] == "" {
		env["DISPLAY"] = cmp.Or(d.Display, defaultDisplay)
	}
	return env
}

// withScreen adds the default start command and environment to a specification that
// asks for a desktop.
func withScreen(spec sandbox.TemplateSpec) sandbox.TemplateSpec {
	if spec.Desktop == nil {
		return spec
	}
	if spec.Start == nil {
		spec.Start = startDesktop(spec.Desktop, shellDesktop)
	}
	spec.Env = desktopEnv(spec.Env, spec.Desktop)
	return spec
}

// desktopPackages are an X server, a browser, and fonts for every script and emoji.
var desktopPackages = []string{
	"tigervnc-standalone-server", "openbox", "hsetroot", "chromium",
	"fonts-dejavu-core", "fonts-liberation2", "fonts-wqy-zenhei", "fonts-noto-color-emoji",
}

// shellPackages are the rest of a desktop.
var shellPackages = []string{
	"tint2", "adwaita-icon-theme", "gnome-themes-extra", "xterm", "pcmanfm", "xdg-utils",
	"curl", "procps", "less", "nano", "file", "unzip",
}

// desktopResources suffice for a browser with a few pages.
var desktopResources = sandbox.Resources{VCPUs: 2, MemoryMiB: 2048, MaxPIDs: 2048}

// computer returns the definition with a desktop.
func (d definition) computer(shell string) definition {
	d.desktop = &sandbox.Desktop{Width: screenWidth, Height: screenHeight, Display: defaultDisplay}
	d.start = startDesktop(d.desktop, shell)
	d.env = desktopEnv(d.env, d.desktop)
	d.resources = desktopResources
	return d
}
