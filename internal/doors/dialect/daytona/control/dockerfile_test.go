package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// Each instruction is in effect for those after it.
func TestDockerfile(t *testing.T) {
	got, err := (&buildInfo{Dockerfile: `# a comment
FROM python:3.12 AS one
LABEL a=b
run apt-get update && \
  # about the next line
  apt-get install -y git
ENV A=1
ENV B="a \"b\" $A" \
    C='$A'
ENV D two  words
ARG E=5
ENV F=${B}$E\ x PATH=/opt/bin:$PATH
WORKDIR /srv
WORKDIR sub/../app
USER dev
RUN ["echo", "it's"]
ENV A=2 G=
EXPOSE 80
ENTRYPOINT ["/bin/serve", "-v"]
CMD ["a b"]
`}).spec()
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"A": "1", "B": `a "b" 1`, "C": "$A", "D": "two  words", "E": "5", "F": `a "b" 15 x`, "PATH": "/opt/bin:" + imagePath}
	want := &sandbox.TemplateSpec{
		Description: "A Dockerfile, from python:3.12", From: sandbox.TemplateSource{Image: "python:3.12"}, BuildNetwork: &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen},
		Run: []sandbox.TemplateStep{
			{Run: "unset A B C D F G\napt-get update &&   apt-get install -y git", Env: map[string]string{}},
			{Run: `unset G` + "\n" + `exec 'echo' 'it'\''s'`, User: "dev", WorkDir: "/srv/app", Env: env},
		},
		Env:  map[string]string{"A": "2", "B": `a "b" 1`, "C": "$A", "D": "two  words", "F": `a "b" 15 x`, "G": "", "PATH": "/opt/bin:" + imagePath},
		User: "dev", WorkDir: "/srv/app", Start: &sandbox.StartCommand{Command: "exec '/bin/serve' '-v' 'a b'"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"CMD serve it": "exec '/bin/sh' '-c' 'serve it'", "CMD [\"b\"]\nENTRYPOINT [\"a\"]": "exec 'a' 'b'", "ENTRYPOINT a\nCMD [\"b\"]": "exec '/bin/sh' '-c' 'a'",
	} {
		if got, err := (&buildInfo{Dockerfile: "FROM x\n" + text}).spec(); err != nil || got.Start.Command != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

// A Dockerfile that only names an image is that image.
func TestPlainImage(t *testing.T) {
	for text, want := range map[string]string{
		"FROM python:3.12\n": "python:3.12", "# a comment\n\nfrom  ghcr.io/a/b@sha256:00 \n": "ghcr.io/a/b@sha256:00", "FROM a\nRUN b": "",
	} {
		spec, err := (&buildInfo{Dockerfile: text}).spec()
		if err != nil {
			t.Fatal(err)
		}
		if got, plain := plainImage(spec); plain != (want != "") || plain && got != want {
			t.Errorf("%q: %q, %v", text, got, plain)
		}
	}
	if got, want := shellQuote([]string{"a b", "it's"}), `exec 'a b' 'it'\''s'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Attack: what would be built otherwise than it says is refused by its words.
func TestDockerfileRefuses(t *testing.T) {
	var many strings.Builder
	for i := range sandbox.MaxEnvPairs + 1 {
		fmt.Fprintf(&many, " A%d=", i)
	}
	for text, want := range map[string]string{
		"FROM a\nENV" + many.String(): "variables", "FROM a\nARG" + many.String(): "variables", "FROM a\nWORKDIR /a" + strings.Repeat("\nWORKDIR "+strings.Repeat("b", 1000), 5): "longer than",
		"": "FROM", "RUN a": "FROM", "FROM": "one image", "FROM --platform=x a": "one image", "FROM $A": "one image", "FROM a\nFROM b": "FROM b", "FROM a\nCOPY b c": "COPY b c",
		"FROM a\nADD b c": "ADD", "FROM a\nSHELL [\"x\"]": "SHELL", "FROM a\nRUN": "a command", "FROM a\nRUN --mount=type=cache b": "options", "FROM a\nRUN cat <<EOF\nx\nEOF": "one line",
		"FROM a\nENV": "NAME=VALUE", "FROM a\nENV 1=2": "NAME=VALUE", "FROM a\nARG A": "NAME=VALUE", "FROM a\nENV A=$B": "$B", "FROM a\nENV A='b": "quote",
		"FROM a\nUSER a:b": "group", "FROM a\nUSER": "one word", "FROM a\nWORKDIR a": "absolute", "# escape=`\nFROM a": "escape", "FROM a\nENV A=" + strings.Repeat("x", 1<<16): "max allowed size",
		"FROM a\nENV A=" + strings.Repeat("x", 1<<10) + "\nENV B=" + strings.Repeat("$A", 1<<10): "too large", "FROM a" + strings.Repeat("\nRUN true", sandbox.MaxTemplateSteps): "instructions",
	} {
		_, err := (&buildInfo{Dockerfile: text}).spec()
		wantInvalid(t, text[:min(len(text), 40)], err, want)
	}
	if _, err := (&buildInfo{Dockerfile: "FROM a", Contexts: []byte(`["x"]`)}).spec(); err == nil {
		t.Error("files of a build are taken")
	}
}
