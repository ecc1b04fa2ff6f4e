// The files of this directory are compiled as part of gVisor, not of Cove.
module gvisor.dev/gvisor
