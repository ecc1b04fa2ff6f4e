package covetest

import "strconv"

// containerScript makes of a new mount namespace what containerd shows containers of
// /proc: some files are hidden, and settings cannot be written.
const containerScript = `
hide_files() { for f; do [ ! -e $f ] || mount --bind /dev/null $f; done; }
hide_dirs() { for d; do [ ! -d $d ] || mount -t tmpfs -o ro,size=4k tmpfs $d; done; }
protect() { for d; do [ ! -e $d ] || { mount --bind $d $d; mount -o remount,bind,ro,nosuid,nodev,noexec $d; }; done; }
hide_files /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/sched_debug /proc/timer_list /proc/timer_stats
hide_dirs /proc/acpi /proc/asound /proc/scsi /sys/firmware
protect /proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger
exec "$@"`

// inContainer returns a command line that runs another as a Pod does whose namespace
// enforces the Pod Security standard "restricted": below a /proc with masks, as a user
// without any capability and without a way to get one. It has the process id of the
// command.
func inContainer(uid uint32, args []string) []string {
	id := strconv.FormatUint(uint64(uid), 10)
	return append([]string{
		"unshare", "--mount", "--", "sh", "-euc", containerScript, "sh",
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--",
	}, args...)
}
