package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/cove-sh/cove/sandbox"
)

// TestBuildView shows a build as on a terminal: the output of installing the base only
// after a failure, and that of the author's steps always.
func TestBuildView(t *testing.T) {
	failure := sandbox.Errorf(sandbox.CodeUnavailable, "the disk is full")
	base := []sandbox.BuildEvent{
		{Step: "installing packages", Fraction: 0.1, Log: "Unpacking one\n"},
		{Step: "installing packages", Fraction: 0.2, Log: "Unpacking two\n"},
	}
	base = slices.Clip(append(base, sandbox.BuildEvent{Step: "1/2 apt: one", Fraction: 0.3, Log: "Unpacking two\n"}))
	step := sandbox.BuildEvent{Step: "2/2 run: make", Fraction: 0.5, Log: "compiled\n"}
	ended := sandbox.BuildEvent{Step: "installing packages", Log: "the disk is full\n", Failed: true}
	for name, c := range map[string]struct {
		opts      buildOptions
		terminal  bool
		events    []sandbox.BuildEvent
		err       error
		has, lack string // words of what is shown
	}{
		"success on a terminal":     {terminal: true, events: append(base, step), has: "compiled 2/2 installing", lack: "Unpacking"},
		"failure on a terminal":     {terminal: true, events: append(base, ended), err: failure, has: "Unpacking two", lack: "full"},
		"failed step on a terminal": {terminal: true, events: append(base, step, ended), err: failure, has: "compiled", lack: "full"},
		"cancelled on a terminal":   {terminal: true, events: base, err: sandbox.Errorf(sandbox.CodeCancelled, "x"), lack: "Unpacking"},
		"verbose":                   {terminal: true, opts: buildOptions{Verbose: true}, events: append(base, step), has: "Unpacking one two compiled"},
		"quiet on a terminal":       {terminal: true, opts: buildOptions{Quiet: true}, events: append(base, step, ended), err: failure, lack: "Unpacking compiled"},
		"a pipe":                    {events: append(base, step), has: "installing Unpacking one two 2/2 compiled"},
		"failure in a pipe":         {events: append(base, step, ended), err: failure, has: "Unpacking compiled", lack: "full"},
		"quiet in a pipe":           {opts: buildOptions{Quiet: true}, events: append(base, step), has: "installing 2/2", lack: "Unpacking compiled"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			v := (&app{Program: Program{Stderr: &out}}).showBuild(c.opts)
			if c.terminal {
				v.bar = &bar{view: progressbar.NewOptions(barSteps, progressbar.OptionSetWriter(&bytes.Buffer{}))}
			}
			for _, ev := range c.events {
				v.began = time.Now().Add(-time.Minute)
				if err := v.event(ev); err != nil {
					t.Fatal(err)
				}
			}
			v.end(c.err)
			for word := range strings.FieldsSeq(c.has) {
				if !strings.Contains(out.String(), word) {
					t.Errorf("%q is missing in\n%s", word, &out)
				}
			}
			for word := range strings.FieldsSeq(c.lack) {
				if strings.Contains(out.String(), word) {
					t.Errorf("%q is in\n%s", word, &out)
				}
			}
		})
	}
}

// TestTexts checks texts that are made to fit on a terminal.
func TestTexts(t *testing.T) {
	if got := folded("one two three four five six", 20, 2); got != "one two three four\n  five six" {
		t.Errorf("folded %q", got)
	}
	if got := folded("as long as it is", 0, 2); got != "as long as it is" {
		t.Errorf("without a terminal %q", got)
	}
	if got := versionText(&sandbox.Template{Version: 4, Versions: []int{4, 3, 1}}); got != "4 (+2)" {
		t.Errorf("versions %q", got)
	}
}
