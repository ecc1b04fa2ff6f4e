package plan

import (
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/sandbox"
)

// mounts are the container's: of claims, which become volumes of Cove, and of empty
// directories.
func (p *planner) mounts(c *corev1.Container, claims []agents.PersistentVolumeClaimTemplate) {
	sizes := map[string]int64{}
	for i, t := range claims {
		field := fmt.Sprintf("volumeClaimTemplates[%d]", i)
		size := t.Spec.Resources.Requests[corev1.ResourceStorage]
		switch {
		case t.Spec.VolumeMode != nil && *t.Spec.VolumeMode == corev1.PersistentVolumeBlock:
			p.refuse(field+".spec.volumeMode", noDevices)
		case t.Spec.DataSource != nil || t.Spec.DataSourceRef != nil || t.Spec.VolumeName != "" || t.Spec.Selector != nil:
			p.refuse(field+".spec", "a volume of Cove begins empty; remove dataSource, dataSourceRef, volumeName and selector")
		default:
			sizes[t.Name] = mebibytes(size)
		}
		if t.Spec.StorageClassName != nil {
			p.ignore(field+".spec.storageClassName", "volumes are directories of Cove's server")
		}
	}
	volumes := map[string]*corev1.VolumeSource{}
	for i, v := range p.spec.Volumes {
		volumes[v.Name] = &p.spec.Volumes[i].VolumeSource
	}
	made := map[string]bool{}
	for i, m := range c.VolumeMounts {
		field := fmt.Sprintf("containers[0].volumeMounts[%d]", i)
		if m.SubPath != "" || m.SubPathExpr != "" || m.MountPropagation != nil || m.RecursiveReadOnly != nil {
			p.refuse(field, "mount the whole volume: subPath, subPathExpr, mountPropagation and recursiveReadOnly do not exist in sandboxes")
			continue
		}
		if size, ok := sizes[m.Name]; ok {
			volume := VolumeName(p.object.ID, m.Name)
			if !made[m.Name] {
				made[m.Name] = true
				p.Volumes = append(p.Volumes, sandbox.CreateVolumeRequest{Name: volume, SizeMiB: size})
			}
			p.Request.Mounts = append(p.Request.Mounts, sandbox.Mount{Target: m.MountPath, Volume: volume, ReadOnly: m.ReadOnly})
			continue
		}
		p.mount(field, m, volumes[m.Name])
	}
}

func (p *planner) mount(field string, m corev1.VolumeMount, v *corev1.VolumeSource) {
	switch {
	case v == nil:
		p.refuse(field, fmt.Sprintf("there is no volume %q", m.Name))
	case v.EmptyDir == nil:
		p.refuse(field, fmt.Sprintf("volume %q: sandboxes have no volumes but emptyDir and volumeClaimTemplates; put files into the image, or write them with cove cp", m.Name))
	case v.EmptyDir.Medium == corev1.StorageMediumMemory:
		mount := sandbox.Mount{Target: m.MountPath, Tmpfs: true, ReadOnly: m.ReadOnly}
		if v.EmptyDir.SizeLimit != nil {
			mount.SizeMiB = mebibytes(*v.EmptyDir.SizeLimit)
		}
		p.Request.Mounts = append(p.Request.Mounts, mount)
	case v.EmptyDir.Medium != "":
		p.refuse(field, fmt.Sprintf("volume %q: sandboxes have no medium %s; remove it", m.Name, v.EmptyDir.Medium))
	default:
		p.Dirs = append(p.Dirs, m.MountPath)
		if v.EmptyDir.SizeLimit != nil {
			p.ignore(fmt.Sprintf("volume %q: emptyDir.sizeLimit", m.Name), "the limit of the sandbox's disk holds for all of it")
		}
	}
}

// VolumeName is the name of the volume of Cove for a claim.
func VolumeName(object, claim string) string {
	name := "k8s-" + object + "-"
	if len(name+claim) <= sandbox.MaxNameLength {
		return name + claim
	}
	return name + fmt.Sprintf("%x", sha256.Sum256([]byte(claim)))[:8]
}
