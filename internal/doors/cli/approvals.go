package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) approvalsCommand() *cobra.Command {
	cmd := group("approvals", "Answer connection requests that a network policy asks about",
		a.approvalsListCommand(),
		a.make(command{
			Use: "get APPROVAL", Short: "Show a question and its answer",
			Example: "  cove approvals get apr-3k2m5n7p2q4r6s3t5u7v2w4x6y",
			Do:      show(approvalDetails, byName(sandbox.Service.GetApproval)),
		}),
		a.approvalsAnswerCommand("allow", "Allow connections that wait for an answer", true),
		a.approvalsAnswerCommand("deny", "Refuse connections that wait for an answer", false))
	cmd.Long = "Answer the questions that network policies ask. When a rule says ask, the connection waits for an\n" +
		"answer: two minutes, or the time set in the policy. Without an answer it is refused.\n\n" +
		"An answer covers only the port of the name or address in the question. The name comes from code\n" +
		"in the sandbox: read all of it before you allow it."
	cmd.Example = "  cove egress ask work '*'\n" +
		"  cove approvals ls\n" +
		"  cove approvals allow apr-3k2m5n7p2q4r6s3t5u7v2w4x6y --for sandbox"
	return cmd
}

var approvalTable = table([]string{"ID", "SANDBOX", "REQUEST", "WAITING", "STATE", "EXPIRES"}, func(v *sandbox.Approval) []any {
	name := v.SandboxName
	if name == "" {
		name = v.SandboxID
	}
	left := ""
	if v.State == sandbox.ApprovalOpen {
		left = max(0, time.Until(v.ExpiresAt)).Round(time.Second).String()
	}
	return []any{v.ID, name, v.Text(), v.Waiting, v.State, left}
})

var approvalDetails = details(func(v *sandbox.Approval) []any {
	return []any{
		"id", v.ID, "sandbox", v.SandboxID, "request", v.Text(), "waiting", v.Waiting, "state", v.State,
		"asked", stamp(&v.AskedAt), "expires", stamp(&v.ExpiresAt), "ended", stamp(v.EndedAt),
		"scope", v.Scope, "until", stamp(v.Until), "answered by", v.AnsweredBy,
	}
})

func (a *app) approvalsListCommand() *cobra.Command {
	var req sandbox.ListApprovalsRequest
	return a.make(command{
		Use: "ls", Short: "List open questions, newest first",
		Example: "  cove approvals ls\n  cove approvals ls --sandbox work --all",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&req.Sandbox, "sandbox", "", "Show only questions of this sandbox")
			f.BoolVar(&req.All, "all", false, "Include questions that are closed, as far as the server remembers them")
		},
		Do: list(approvalTable, func(ctx context.Context, c *call) ([]sandbox.Approval, error) {
			return all(func(s sandbox.Service, ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Approval], error) {
				req.Page = page
				return s.ListApprovals(ctx, req)
			})(ctx, c)
		}),
	})
}

func (a *app) approvalsAnswerCommand(verb, short string, allow bool) *cobra.Command {
	held := "once"
	return a.make(command{
		Use: verb + " APPROVAL", Short: short,
		Long: short + ". The first answer to a question is final.\n\n" +
			"--for sets how long the answer holds: for the connections that wait now (once), until the sandbox\n" +
			"ends or its policy is replaced (sandbox), or for a duration such as 1h.",
		Example: fmt.Sprintf("  cove approvals %[1]s apr-3k2m5n7p2q4r6s3t5u7v2w4x6y\n  cove approvals %[1]s apr-3k2m5n7p2q4r6s3t5u7v2w4x6y --for 1h", verb),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&held, "for", "once", "How long the answer holds: once, sandbox, or a duration such as 30m")
		},
		Do: show(approvalDetails, func(ctx context.Context, c *call) (*sandbox.Approval, error) {
			req := sandbox.AnswerApprovalRequest{Allow: allow, Scope: sandbox.ApprovalScope(held)}
			if req.Scope != sandbox.ApproveOnce && req.Scope != sandbox.ApproveSandbox {
				d, err := time.ParseDuration(held)
				if err != nil || d < time.Second || d%time.Second != 0 {
					return nil, c.misuse("--for %q is not valid; use once, sandbox, or a duration of whole seconds such as 1h", held)
				}
				req.Scope, req.Seconds = sandbox.ApproveDuration, int64(d/time.Second)
			}
			return c.client.AnswerApproval(ctx, c.args[0], req)
		}),
	})
}
