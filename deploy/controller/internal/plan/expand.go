package plan

import "regexp"

var references = regexp.MustCompile(`\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)`)

// Expand replaces $(NAME) as Kubernetes does: by the value of the variable, and not at all
// if there is none. $$ is $.
func Expand(s string, env map[string]string) string {
	return references.ReplaceAllStringFunc(s, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := env[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}

func expandAll(words []string, env map[string]string) []string {
	var all []string
	for _, w := range words {
		all = append(all, Expand(w, env))
	}
	return all
}
