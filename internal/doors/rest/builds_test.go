package rest_test

import (
	"context"
	"errors"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// builds is the part of the contract about builds in the background.
func builds(ctx context.Context, s sandbox.Service) []note {
	var notes []note
	step := func(name string, v any, err error) {
		n := note{Step: name, Value: normal(v)}
		if err != nil {
			n = note{Step: name, Error: volatile.ReplaceAllString(string(sandbox.CodeOf(err))+": "+err.Error(), "*")}
		}
		notes = append(notes, n)
	}
	_, err := s.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: "no name"})
	step("start a build: name", nil, err)
	spec := &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Debian: "bookworm"}, Description: "of a spec", Ports: []int{80},
		Start: &sandbox.StartCommand{Command: ""},
	}
	_, err = s.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: "mine", Spec: spec})
	step("start a build: start", nil, err)
	spec.Start = nil
	started, err := s.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: "mine", Spec: spec})
	step("start a build", err == nil && started.Template == "mine", err)
	var events []sandbox.BuildEvent
	enough := errors.New("enough")
	_, err = s.FollowBuild(ctx, started.ID, func(sandbox.BuildEvent) error { return enough })
	step("follow a build, and leave", err == enough, nil)
	ended, err := s.FollowBuild(ctx, started.ID, func(ev sandbox.BuildEvent) error {
		events = append(events, ev)
		return nil
	})
	step("follow a build", ended, err)
	step("follow a build: events", events, nil)
	got, err := s.GetBuild(ctx, started.ID)
	step("get a build", got, err)
	_, err = s.GetBuild(ctx, "bld-none")
	step("get a build: none", nil, err)
	got, err = s.CancelBuild(ctx, started.ID)
	step("cancel a build that has ended", got, err)
	list, err := s.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: "mine", Page: sandbox.Page{Limit: 1}})
	step("list builds", list, err)
	_, err = s.UploadArchive(ctx, strings.NewReader("archive"))
	step("upload an archive", nil, err)
	_, err = s.LinkUpload(ctx, sandbox.UploadLinkRequest{Name: "", SizeBytes: 1})
	step("link an upload: name", nil, err)
	_, err = s.LinkUpload(ctx, sandbox.UploadLinkRequest{Name: "x", SizeBytes: 1})
	step("link an upload", nil, err)
	step("alias", nil, s.AliasTemplate(ctx, "other", "mine"))
	t, err := s.GetTemplate(ctx, "other")
	step("template by alias", t, err)
	step("no alias", nil, s.AliasTemplate(ctx, "other", ""))
	_, err = s.GetTemplate(ctx, "other")
	step("template by no alias", nil, err)
	step("alias: none", nil, s.AliasTemplate(ctx, "other", "none"))
	step("delete a template", nil, s.DeleteTemplate(ctx, "mine"))
	step("delete a template: none", nil, s.DeleteTemplate(ctx, "mine"))
	return notes
}
