package cli

import (
	"errors"
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// The usage line says how many arguments there may be.
func TestUsageArgs(t *testing.T) {
	const many = 9
	for use, want := range map[string][]int{ // numbers of arguments that are taken
		"ls":                                     {0},
		"ls [flags]":                             {0},
		"ls [SANDBOX]":                           {0, 1},
		"get NAME [flags]":                       {1},
		"rm NAME...":                             {1, 2, many},
		"stats [SANDBOX...]":                     {0, 1, 2, many},
		"env SANDBOX [NAME=VALUE...]":            {1, 2, many},
		"set SANDBOX [PRESET]":                   {1, 2},
		"click SANDBOX [X Y]":                    {1, 2, 3},
		"attach SANDBOX [ENV=]NAME":              {2},
		"port-forward SANDBOX [LOCAL:]REMOTE...": {2, many},
		"run [flags] [--] COMMAND [ARG...]":      {1, 2, many},
		"windows SANDBOX [focus|place WINDOW]":   {1, 2, 3},
		"exec [flags] SANDBOX [--] CMD [ARG...]": {2, many},
		"move SANDBOX X Y":                       {3},
	} {
		cmd := &cobra.Command{Use: use}
		for _, n := range []int{0, 1, 2, 3, 4, many} {
			err := usageArgs(use)(cmd, make([]string, n))
			wanted := slices.Contains(want, n) || n > 2 && slices.Contains(want, many)
			if (err == nil) != wanted {
				t.Errorf("%s with %d arguments: %v", use, n, err)
			}
		}
	}
}

// A command's exit code is for errors that have none of their own.
func TestFailedCode(t *testing.T) {
	failure := errors.New("broken")
	for _, c := range []struct {
		err        error
		code, want int
	}{
		{failure, 0, exitError},
		{failure, exitFailed, exitFailed},
		{&exit{code: 7}, exitFailed, 7},
		{&usage{command: "cove x", err: failure}, exitFailed, exitUsage},
		{nil, exitFailed, exitOK},
	} {
		a := &app{Program: Program{Stderr: t.Output()}}
		if got := a.exitCode(t.Context(), withCode(c.err, c.code)); got != c.want {
			t.Errorf("%v with code %d: exit code %d, not %d", c.err, c.code, got, c.want)
		}
	}
}
