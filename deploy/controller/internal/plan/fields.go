package plan

import (
	"reflect"
	"slices"
	"strings"
)

// How a field that is set is treated. The zero value, of fields that are in no table, is
// to refuse it: fields of later versions of Kubernetes are among them.
type rule struct {
	kind kind
	why  string // or what to do instead
}

type kind int

const (
	refused kind = iota
	used         // by code of this package, or true of sandboxes anyway
	ignored
)

const (
	noDevices   = "sandboxes get no devices; remove it"
	ownKernel   = "each sandbox has a kernel of its own, and no rights on the machine"
	placed      = "Cove says on which node a sandbox is"
	noProbe     = "Ready means that the sandbox runs and its command has started"
	noToken     = "no token of Kubernetes enters a sandbox"
	namespaces  = "a sandbox shares nothing with its machine; remove it"
	inside      = "it would hold inside of the sandbox only"
	noTerminal  = "the command reads an empty input"
	ownIdentity = "the sandbox's name is the name of its object"
)

var podFields = map[string]rule{
	"Volumes": {used, ""}, "Containers": {used, ""}, "RestartPolicy": {used, ""}, "SecurityContext": {used, ""},
	"AutomountServiceAccountToken": {used, ""}, "OS": {used, ""}, "HostUsers": {used, ""}, "EnableServiceLinks": {used, ""},

	"InitContainers":        {refused, "do their work in the image, or in a template of Cove"},
	"EphemeralContainers":   {refused, "use cove exec"},
	"ActiveDeadlineSeconds": {refused, "use spec.shutdownTime"},
	"HostNetwork":           {refused, namespaces}, "HostPID": {refused, namespaces}, "HostIPC": {refused, namespaces},
	"HostAliases": {refused, "use names that the server's resolver knows"}, "DNSConfig": {refused, "a sandbox asks the resolver of its gateway; remove it"},
	"SetHostnameAsFQDN": {refused, "a sandbox has no name in the cluster's DNS; remove it"},
	"ResourceClaims":    {refused, noDevices}, "Resources": {refused, "set the resources of the container"},

	"TerminationGracePeriodSeconds": {ignored, "a sandbox that is deleted ends at once"},
	"DNSPolicy":                     {ignored, "a sandbox asks the resolver of its gateway"},
	"ServiceAccountName":            {ignored, noToken}, "DeprecatedServiceAccount": {ignored, noToken},
	"ImagePullSecrets": {ignored, "images are pulled with the logins of the server and of the controller"},
	"RuntimeClassName": {ignored, ownKernel}, "ShareProcessNamespace": {ignored, "there is one container"},
	"Hostname": {ignored, ownIdentity}, "Subdomain": {ignored, ownIdentity}, "HostnameOverride": {ignored, ownIdentity},
	"NodeSelector": {ignored, placed}, "NodeName": {ignored, placed}, "Affinity": {ignored, placed}, "SchedulerName": {ignored, placed},
	"Tolerations": {ignored, placed}, "PriorityClassName": {ignored, placed}, "Priority": {ignored, placed}, "PreemptionPolicy": {ignored, placed},
	"TopologySpreadConstraints": {ignored, placed}, "Overhead": {ignored, placed}, "SchedulingGroup": {ignored, placed},
}

var podSecurityFields = map[string]rule{
	"RunAsUser": {used, ""}, "RunAsGroup": {used, ""}, "RunAsNonRoot": {used, ""},
	"Sysctls": {refused, "sandboxes have no settings of the kernel; remove it"}, "WindowsOptions": {refused, "sandboxes run Linux"},
	"SupplementalGroups": {refused, "put the groups into the image"},
	"FSGroup":            {ignored, "all users of a sandbox can use its volumes"}, "FSGroupChangePolicy": {ignored, "all users of a sandbox can use its volumes"},
	"SupplementalGroupsPolicy": {ignored, inside}, "SeccompProfile": {ignored, ownKernel}, "AppArmorProfile": {ignored, ownKernel},
	"SELinuxOptions": {ignored, ownKernel}, "SELinuxChangePolicy": {ignored, ownKernel},
}

var containerFields = map[string]rule{
	"Name": {used, ""}, "Image": {used, ""}, "Command": {used, ""}, "Args": {used, ""}, "WorkingDir": {used, ""}, "Ports": {used, ""}, "Env": {used, ""},
	"Resources": {used, ""}, "VolumeMounts": {used, ""}, "ImagePullPolicy": {used, ""}, "SecurityContext": {used, ""},

	"EnvFrom":       {refused, "give the variables in env: other objects are not read"},
	"RestartPolicy": {refused, "set that of the Pod"}, "RestartPolicyRules": {refused, "set the restartPolicy of the Pod"},
	"VolumeDevices": {refused, noDevices}, "Lifecycle": {refused, "make it a part of the command"},

	"LivenessProbe": {ignored, noProbe}, "ReadinessProbe": {ignored, noProbe}, "StartupProbe": {ignored, noProbe},
	"ResizePolicy": {ignored, "limits change without a restart"}, "Stdin": {ignored, noTerminal}, "StdinOnce": {ignored, noTerminal}, "TTY": {ignored, noTerminal},
	"TerminationMessagePath": {ignored, "the output of the command is kept"}, "TerminationMessagePolicy": {ignored, "the output of the command is kept"},
}

var securityFields = map[string]rule{
	"RunAsUser": {used, ""}, "RunAsGroup": {used, ""}, "RunAsNonRoot": {used, ""}, "Privileged": {used, ""},
	"ProcMount": {refused, "a sandbox has a /proc of its own; remove it"}, "WindowsOptions": {refused, "sandboxes run Linux"},
	"Capabilities": {ignored, inside}, "ReadOnlyRootFilesystem": {ignored, "all that runs in a sandbox may write to its disk"}, "AllowPrivilegeEscalation": {ignored, inside},
	"SeccompProfile": {ignored, ownKernel}, "AppArmorProfile": {ignored, ownKernel}, "SELinuxOptions": {ignored, ownKernel},
}

// check applies a table to the fields of a structure that are set.
func (p *planner) check(path string, object any, table map[string]rule) {
	v := reflect.ValueOf(object)
	for i := range v.NumField() {
		if v.Field(i).IsZero() || emptyList(v.Field(i)) {
			continue
		}
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch r := table[f.Name]; r.kind {
		case refused:
			if r.why == "" {
				r.why = "Cove does not know it; remove it"
			}
			p.refuse(path+name, r.why)
		case ignored:
			p.ignore(path+name, r.why)
		}
	}
	slices.Sort(p.Ignored)
}

func emptyList(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}
