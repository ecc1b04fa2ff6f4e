// Package layer compares and merges the file systems of sandboxes.
//
// What a sandbox shows is a [View]: a [Lower], the read-only template that many
// sandboxes share, and above it a [Layer], which holds all that the sandbox has
// changed. gVisor writes a layer as a tar stream; [Read] makes an index of it.
// [Compare] tells what differs between two views of the same template, and
// [MakePlan] what has to be done to one to bring in what another changed since
// both were the same. The cost follows what the layers hold and not the size of
// the template.
//
// A plan is carried out inside the sandbox, by package apply, from a stream that
// [WritePlan] writes. It is an ordinary tar stream in PAX format, described in
// package apply.
//
// Some files are each sandbox's own, and Cove writes them: /etc/hosts,
// /etc/resolv.conf, /etc/machine-id, /var/lib/dbus/machine-id, the SSH host keys,
// /etc/ssh/ssh_host_*, and the system's file of certificate authorities. They are compared and merged only if a path that is
// selected names one itself. /run/cove, where a fork finds its place, never is.
//
// Layers of images are in package image, which keeps them on the disk with their
// content. In those, a name may lead through a link, come twice, or before its
// directory. gVisor writes none of that, so it is refused here; what is kept of
// content is its hashes, and text for patches.
//
// A layer comes from a sandbox, so nothing in it is trusted: it is bounded in
// every direction and checked as it is read.
package layer
