package cli

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

func TestPackagesCheck(t *testing.T) {
	if c := packagesCheck(true, true, true); c.Status != sandbox.CheckOK || c.Fix != "" {
		t.Errorf("a program with everything: %+v", c)
	}
	for _, tt := range []struct {
		pages, viewer, parser bool
		detail                string
	}{
		{false, true, true, "without the console; everything else works"},
		{true, false, true, "without the live view page; everything else works"},
		{true, true, false, "without the JavaScript parser, so"},
		{false, false, false, "without the console, without the live view page, without the JavaScript parser"},
	} {
		if c := packagesCheck(tt.pages, tt.viewer, tt.parser); c.Status != sandbox.CheckWarn || !strings.Contains(c.Detail, tt.detail) || !strings.Contains(c.Fix, "make build") {
			t.Errorf("got %+v, want %q", c, tt.detail)
		}
	}
}
