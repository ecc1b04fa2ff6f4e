package cli

import "github.com/spf13/cobra"

// addGroups adds all commands, in the groups in which the help shows them.
func (a *app) addGroups(root *cobra.Command) {
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Sandboxes", []*cobra.Command{
			a.runCommand(), a.createCommand(), a.lsCommand(), a.getCommand(), a.updateCommand(), a.killCommand(),
		}},
		{"Inside a sandbox", []*cobra.Command{
			a.execCommand(), a.codeCommand(), a.cpCommand(), a.jobCommand(), a.logsCommand(), a.psCommand(), a.envCommand(),
			a.statsCommand(), a.topCommand(), a.eventsCommand(), a.computerCommand(),
		}},
		{"Snapshots and forks", []*cobra.Command{
			a.pauseCommand(), a.resumeCommand(), a.snapshotCommand(), a.forkCommand(), a.diffCommand(), a.mergeCommand(), a.tryCommand(),
		}},
		{"Network and secrets", []*cobra.Command{
			a.egressCommand(), a.approvalsCommand(), a.netlogCommand(), a.secretCommand(), a.previewCommand(), a.portForwardCommand(),
		}},
		{"Templates and volumes", []*cobra.Command{a.templateCommand(), a.volumeCommand()}},
		{"Server", []*cobra.Command{
			a.serveCommand(), a.nodeCommand(), a.daemonCommand(), a.mcpCommand(), a.mcpWatchdogCommand(), a.consoleCommand(), a.compatCommand(), a.keyCommand(), a.auditCommand(), a.backupCommand(), a.restoreCommand(), a.recoverCommand(), a.doctorCommand(), a.versionCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(a.openapiCommand())
}
