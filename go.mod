module github.com/troupe-run/troupe

go 1.26.8
