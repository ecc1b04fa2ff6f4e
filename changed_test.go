package cove_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestChangedKnowsAllPackages compares the table of scripts/changed, by which CI chooses what
// it runs beyond "make test", with the packages that have more tests than that.
func TestChangedKnowsAllPackages(t *testing.T) {
	script, err := os.ReadFile("scripts/changed")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, line := range regexp.MustCompile(`(?m)^\t\d+ \./(\S+)`).FindAllStringSubmatch(string(script), -1) {
		listed = append(listed, line[1])
	}
	more := regexp.MustCompile(`(?m)^func Test(Real)?More|needs\.More\(\)`)
	for _, dir := range listed {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("scripts/changed has %s, which has no tests: %v", dir, err)
		}
	}
	for _, root := range []string{"internal", "test"} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, "_test.go") || slices.Contains(listed, filepath.Dir(path)) {
				return err
			}
			source, err := os.ReadFile(path)
			if more.Match(source) {
				t.Errorf("%s has tests that \"make test\" leaves out, but is not in scripts/changed", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
