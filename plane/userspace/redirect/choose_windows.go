package redirect

import (
	"context"
	"errors"
	"fmt"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Choose makes the one redirector of Windows, which is by addresses. It changes nothing.
func Choose(cfg Config) (c Redirector, passed []error, err error) {
	a, err := NewAddresses(cfg)
	if err != nil {
		return nil, nil, err
	}
	return a, nil, nil
}

// Remove removes the addresses that previous processes added, unless except is "addresses".
func Remove(ctx context.Context, families []lb.Family, except string) (report mode.Report, err error) {
	if except == "addresses" {
		return report, nil
	}
	var errs []error
	for _, fam := range families {
		c, err := NewAddresses(Config{Family: fam})
		if err == nil {
			var removed int
			removed, err = c.removeAll()
			err = errors.Join(err, c.Close())
			report.Count(removed, "service addresses of %s", fam)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove service addresses of %s: %w", fam, err))
		}
	}
	return report, errors.Join(errs...)
}
