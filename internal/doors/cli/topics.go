package cli

import "github.com/spf13/cobra"

// exitCodesTopic is a page of the help, without a command: cove help exit-codes.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "Exit codes of cove and its commands",
		Long: "Every command exits with one of these codes:\n\n" +
			"  0      Success\n" +
			"  1      Error\n" +
			"  2      Invalid command line\n" +
			"  128+n  Ended by signal n\n\n" +
			"run and exec exit with the exit code of the command they ran, or with one of these:\n\n" +
			"  124    The command timed out\n" +
			"  125    Cove failed\n" +
			"  126    The program cannot be executed\n" +
			"  127    The program was not found",
	}
}
