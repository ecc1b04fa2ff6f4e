package dialecttest

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// screenCommand runs a screen on which a terminal writes down what is typed,
// and edits nothing.
const screenCommand = `mkdir -m 1777 -p /tmp/.X11-unix
Xvfb :1 -screen 0 1280x800x24 -nolisten tcp &
until [ -e /tmp/.X11-unix/X1 ]; do sleep 0.1; done
DISPLAY=:1 exec xterm -u8 -geometry 100x30+0+0 -e sh -c 'stty -icanon; cat > /tmp/typed'`

// BuildScreen makes a template of this machine's programs, whose sandboxes have a
// screen of 1280 by 800 pixels. On it is a terminal, and what is typed there is in
// the file /tmp/typed.
func BuildScreen(t testing.TB, d *covetest.Daemon, name string) {
	t.Helper()
	needs.Command(t, "Xvfb", "xterm")
	_, err := d.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: name, Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Host: true}, Desktop: &sandbox.Desktop{Width: 1280, Height: 800, Display: ":1"},
		Start: &sandbox.StartCommand{Command: screenCommand, Ready: "test -e /tmp/typed"},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
}
