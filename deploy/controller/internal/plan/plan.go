// Package plan says which sandbox of Cove a Pod template describes. Each field of the
// template is given to Cove, or listed as one that has no effect, or refused with what to
// do instead; none is passed over.
package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// Annotations of the Pod template.
const (
	// TemplateAnnotation names a template of Cove, which is used in place of the image.
	TemplateAnnotation = "cove.sh/template"
	// NetworkAnnotation is a network policy of Cove: the name of a preset, or JSON.
	NetworkAnnotation = "cove.sh/network"
	// SecretsAnnotation attaches secrets of Cove: VARIABLE=SECRET, with commas between.
	SecretsAnnotation = "cove.sh/secrets"
)

// Plan is a sandbox of Cove that is to be made.
type Plan struct {
	// Image is the image of the container; Template is used instead if it is set.
	Image    string
	Template string
	// Command and Args replace the entry point and the arguments of the image.
	Command, Args []string
	// Restart says whether the command is started again when it has ended.
	Restart corev1.RestartPolicy
	// NonRoot refuses templates whose user is root.
	NonRoot bool
	// Request has all that does not depend on the template and the volumes.
	Request sandbox.CreateRequest
	// Ports are those that get a preview.
	Ports []int
	// Dirs are directories to make: empty volumes on the sandbox's own disk.
	Dirs []string
	// Volumes are volumes to make; Request.Mounts has them by these names.
	Volumes []sandbox.CreateVolumeRequest
	// Ignored are the fields that have no effect, each with the reason.
	Ignored []string
}

// Error says what of a template Cove cannot do.
type Error struct {
	Problems []string
}

// Error lists the problems.
func (e *Error) Error() string { return strings.Join(e.Problems, "; ") }

// Object is what an environment can refer to of the object of a sandbox. ID is unique
// for ever, and names volumes.
type Object struct {
	Namespace, Name, ID string
}

// planner collects what there is to say about a template.
type planner struct {
	*Plan
	object   Object
	spec     *corev1.PodSpec
	secrets  map[string]string
	problems []string
}

// Of plans the sandbox of a blueprint. Templates has templates of Cove by the image that
// they stand for. The error is an [Error].
func Of(b *agents.SandboxBlueprint, object Object, templates map[string]string) (*Plan, error) {
	p := &planner{Plan: &Plan{}, object: object, spec: &b.PodTemplate.Spec}
	p.Request.LifetimeSeconds, p.Request.IdleTimeoutSeconds = new(int64), new(int64) // the object says when it ends
	p.annotations(b.PodTemplate.ObjectMeta.Annotations)
	p.pod()
	if b.Service != nil && *b.Service {
		p.ignore("spec.service", "a sandbox is no Pod that a Service could select; use the previews in the annotation cove.sh/previews")
	}
	if len(p.spec.Containers) != 1 {
		p.refuse("containers", fmt.Sprintf("there are %d; a sandbox runs one: put the others into Sandboxes of their own", len(p.spec.Containers)))
	} else {
		p.container(&p.spec.Containers[0], templates)
		p.mounts(&p.spec.Containers[0], b.VolumeClaimTemplates)
	}
	if len(p.problems) > 0 {
		return nil, &Error{p.problems}
	}
	return p.Plan, nil
}

func (p *planner) refuse(field, why string) {
	p.problems = append(p.problems, field+": "+why)
}

func (p *planner) ignore(field, why string) {
	p.Ignored = append(p.Ignored, field+": "+why)
}

func (p *planner) annotations(a map[string]string) {
	p.Template = a[TemplateAnnotation]
	if network, ok := a[NetworkAnnotation]; ok {
		policy := &sandbox.NetworkPolicy{}
		if !strings.HasPrefix(strings.TrimSpace(network), "{") {
			policy.Preset = sandbox.NetworkPreset(network)
		} else if err := json.Unmarshal([]byte(network), policy); err != nil {
			p.refuse(NetworkAnnotation, "it is neither a preset nor a policy in JSON: "+err.Error())
		}
		p.Request.Network = policy
	}
	p.secrets = map[string]string{}
	for entry := range strings.SplitSeq(a[SecretsAnnotation], ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		variable, secret, ok := strings.Cut(entry, "=")
		if !ok || variable == "" || secret == "" {
			p.refuse(SecretsAnnotation, fmt.Sprintf("%q is not VARIABLE=SECRET", entry))
		}
		p.secrets[variable] = secret
	}
	if len(p.secrets) > 0 {
		p.Request.Secrets = p.secrets
	}
}

func (p *planner) pod() {
	s := p.spec
	p.check("", *s, podFields)
	p.Restart = s.RestartPolicy
	if p.Restart == "" {
		p.Restart = corev1.RestartPolicyAlways
	}
	if s.AutomountServiceAccountToken != nil && *s.AutomountServiceAccountToken {
		p.refuse("automountServiceAccountToken", "no token of Kubernetes enters a sandbox; set it to false")
	}
	if s.OS != nil && s.OS.Name != corev1.Linux {
		p.refuse("os", "sandboxes run Linux")
	}
	if c := s.SecurityContext; c != nil {
		p.check("securityContext.", *c, podSecurityFields)
		p.user("", c.RunAsUser, c.RunAsGroup, c.RunAsNonRoot)
	}
}

// user is that of a security context. That of the container comes later, and counts.
func (p *planner) user(path string, uid, gid *int64, nonRoot *bool) {
	if nonRoot != nil {
		p.NonRoot = *nonRoot
	}
	old, oldGroup, _ := strings.Cut(p.Request.User, ":")
	if uid != nil {
		old = strconv.FormatInt(*uid, 10)
	}
	if gid != nil {
		oldGroup = strconv.FormatInt(*gid, 10)
	}
	switch {
	case old == "" && oldGroup != "":
		p.refuse(path+"securityContext.runAsGroup", "set runAsUser too")
	case oldGroup != "":
		p.Request.User = old + ":" + oldGroup
	default:
		p.Request.User = old
	}
}

func (p *planner) container(c *corev1.Container, templates map[string]string) {
	p.check("containers[0].", *c, containerFields)
	p.Image, p.Command, p.Args = c.Image, c.Command, c.Args
	if p.Template == "" {
		p.Template = templates[c.Image]
	}
	if p.Template == "" && p.Image == "" {
		p.refuse("containers[0].image", "name an image, or a template of Cove by the annotation "+TemplateAnnotation)
	}
	if p.Template != "" && len(c.Command) == 0 && len(c.Args) > 0 {
		p.refuse("containers[0].args", "the template "+p.Template+" has no entry point that could get them; set command too")
	}
	if c.ImagePullPolicy == corev1.PullNever {
		p.refuse("containers[0].imagePullPolicy", "nodes of the cluster do not run the sandbox; make a template of Cove and name it by the annotation "+TemplateAnnotation)
	}
	p.Request.WorkDir = c.WorkingDir
	if s := c.SecurityContext; s != nil {
		p.containerSecurity(s)
	}
	if uid, _, _ := strings.Cut(p.Request.User, ":"); p.NonRoot && uid == "0" {
		p.refuse("securityContext.runAsUser", "it is 0, which runAsNonRoot forbids")
	}
	p.env(c.Env)
	p.resources(&c.Resources)
	for i, port := range c.Ports {
		switch field := fmt.Sprintf("containers[0].ports[%d]", i); {
		case port.Protocol != "" && port.Protocol != corev1.ProtocolTCP:
			p.ignore(field, "only TCP ports get a preview")
		case port.HostPort != 0 || port.HostIP != "":
			p.refuse(field, "no port of a machine leads to a sandbox; remove hostPort, and use the port's preview")
		default:
			p.Ports = append(p.Ports, int(port.ContainerPort))
		}
	}
}

func (p *planner) containerSecurity(s *corev1.SecurityContext) {
	const path = "containers[0].securityContext."
	p.check(path, *s, securityFields)
	if s.Privileged != nil && *s.Privileged {
		p.refuse(path+"privileged", "nothing in a sandbox has rights outside of it; remove it")
	}
	if s.Capabilities != nil && len(s.Capabilities.Add) > 0 {
		p.refuse(path+"capabilities.add", "nothing in a sandbox has rights outside of it; remove it")
	}
	p.user("containers[0].", s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot)
}

func (p *planner) env(env []corev1.EnvVar) {
	all := map[string]string{}
	for i, e := range env {
		field := fmt.Sprintf("containers[0].env[%d] (%s)", i, e.Name)
		if p.secrets[e.Name] != "" {
			if e.Value != "" {
				p.refuse(field, "it has a value, and the annotation "+SecretsAnnotation+" names a secret for it; keep one of them")
			}
			continue
		}
		value, ok := e.Value, true
		if e.ValueFrom != nil {
			value, ok = p.valueFrom(field, e.ValueFrom)
		}
		if ok {
			all[e.Name] = Expand(value, all)
		}
	}
	if len(all) > 0 {
		p.Request.Env = all
	}
	p.Command, p.Args = expandAll(p.Command, all), expandAll(p.Args, all)
}

func (p *planner) valueFrom(field string, from *corev1.EnvVarSource) (string, bool) {
	switch {
	case from.SecretKeyRef != nil:
		p.refuse(field, "values of Secrets do not enter a sandbox: make a secret of Cove with the hosts that it is for, and name it by the annotation "+SecretsAnnotation+" (docs/agent-sandbox.md)")
	case from.FieldRef != nil:
		switch from.FieldRef.FieldPath {
		case "metadata.name":
			return p.object.Name, true
		case "metadata.namespace":
			return p.object.Namespace, true
		case "metadata.uid":
			return p.object.ID, true
		}
		p.refuse(field, "there is no Pod that has "+from.FieldRef.FieldPath+"; use metadata.name, metadata.namespace or metadata.uid, or give a value")
	default:
		p.refuse(field, "give a value: other objects are not read")
	}
	return "", false
}

// resources are the limits, or else the requests.
func (p *planner) resources(r *corev1.ResourceRequirements) {
	if len(r.Claims) > 0 {
		p.refuse("containers[0].resources.claims", "sandboxes get no devices; remove it")
	}
	all := maps.Clone(r.Requests)
	if all == nil {
		all = corev1.ResourceList{}
	}
	maps.Copy(all, r.Limits)
	res := &p.Request.Resources
	for _, name := range slices.Sorted(maps.Keys(all)) {
		q := all[name]
		switch name {
		case corev1.ResourceCPU:
			res.VCPUs = int(q.Value()) // rounded up
		case corev1.ResourceMemory:
			res.MemoryMiB = mebibytes(q)
		case corev1.ResourceEphemeralStorage:
			res.DiskMiB = mebibytes(q)
		default:
			p.refuse("containers[0].resources", "sandboxes have no "+string(name)+"; remove it")
		}
	}
}

// mebibytes rounds up.
func mebibytes(q resource.Quantity) int64 {
	return int64(math.Ceil(float64(q.Value()) / (1 << 20)))
}
