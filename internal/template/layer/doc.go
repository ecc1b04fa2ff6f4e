// Package layer compares and merges the file systems of sandboxes.
//
// The file system of a sandbox is a [View]: a [Lower], the read-only template that
// many sandboxes share, and above it a [Layer], which has all changes of the sandbox.
// gVisor writes a layer as a tar stream; [Read] makes an index of it. [Compare] returns
// the differences between two views of the same template, and [MakePlan] the operations
// that merge the changes of one view into another since both were the same. The cost
// depends on the size of the layers and not on the size of the template.
//
// Package apply carries out a plan inside the sandbox, from a stream that [WritePlan]
// writes. It is an ordinary tar stream in PAX format, described in package apply.
//
// Some files belong to each sandbox itself, and Cove writes them: /etc/hosts,
// /etc/resolv.conf, /etc/machine-id, /var/lib/dbus/machine-id, the SSH host keys,
// /etc/ssh/ssh_host_*, and the system's file of certificate authorities. They are
// compared and merged only if a selected path is that of the file itself. /run/cove,
// where a fork learns which fork it is, is never compared.
//
// Package image handles the layers of images, and stores them with their content. In
// those, a name may resolve through a link, occur twice, or come before its directory.
// gVisor writes no such layers, so they are refused here. Of the content, only hashes
// and text for patches are kept.
//
// A layer comes from a sandbox, so nothing in it is trusted: all its dimensions are
// bounded, and it is checked while it is read.
package layer
