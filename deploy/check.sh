#!/bin/sh
# Checks the container file and the unit of this folder, as far as this machine can, and names
# what it could not check. Exits with 1 if a check fails; with --strict also if one was not made.
#
#   deploy/check.sh [--strict]

set -eu

strict=
case "${1:-}" in
'') ;;
--strict) strict=1 ;;
*) echo "usage: deploy/check.sh [--strict]" >&2; exit 2 ;;
esac

cd "$(dirname "$0")/.."
work=$(mktemp -d)
server=
container=
missed=0
cleanup() {
	[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
	[ -z "$container" ] || docker rm -f -v "$container" >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
checked() { echo "checked      $1"; }
not_checked() { echo "NOT CHECKED  $1"; missed=$((missed + 1)); }
fail() { echo "FAILED       $1" >&2; exit 1; }

# The build of the image, with the files that the image has.
mkdir "$work/src"
git ls-files -z | grep -zvE '^(sdk|tla|docs)/|_test\.go$' | xargs -0 cp --parents -t "$work/src"
build=$(sed -n 's/^RUN \(CGO_ENABLED=0 go build .*\) \\$/\1/p' deploy/Dockerfile | sed "s|/out/|$work/|; s|\"-s -w[^\"]*\"|\"-s -w\"|")
[ -n "$build" ] || fail "deploy/Dockerfile has no line RUN CGO_ENABLED=0 go build"
(cd "$work/src" && eval "$build") || fail "the build of deploy/Dockerfile: $build"
checked "the program builds from the files of the image"
troupe=$work/troupe
if command -v ldd >/dev/null; then
	if ldd "$troupe" >/dev/null 2>&1; then fail "the program is not static: $(ldd "$troupe")"; fi
	checked "the program is static"
else
	not_checked "whether the program is static: ldd is missing"
fi

# The image's variables and commands, as its user if this one may change it.
as=
state=$work/state
mkdir "$state"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	as="setpriv --reuid 65532 --regid 65532 --clear-groups"
	chmod 755 "$work"
	chown 65532:65532 "$state"
elif [ "$(id -u)" = 0 ]; then
	not_checked "that the server runs without root: setpriv is missing"
fi
variables=$(sed -n 's/^ENV //p' deploy/Dockerfile | sed "s|/var/lib/troupe|$state|; s|0\.0\.0\.0:8283|0.0.0.0:0|")
if $as env $variables "$troupe" serve >"$work/url" 2>"$work/log"; then
	fail "a server off loopback starts without an API key"
fi
grep -q "needs an API key" "$work/log" || fail "the server does not start: $(cat "$work/log")"
$as "$troupe" keys create --data "$state/data" --scope admin >"$work/key" 2>"$work/log" || fail "keys create: $(cat "$work/log")"
$as env $variables "$troupe" serve >"$work/url" 2>"$work/log" &
server=$!
tries=0
until [ -s "$work/url" ]; do
	kill -0 "$server" 2>/dev/null || fail "the server ended: $(cat "$work/log")"
	tries=$((tries + 1))
	[ "$tries" -lt 300 ] || fail "the server does not start: $(cat "$work/log")"
	sleep 0.1
done
url=$(cat "$work/url")
"$troupe" health --server "$url" >/dev/null || fail "the health check"
TROUPE_KEY=$(cat "$work/key") "$troupe" agents list --server "$url" >/dev/null || fail "a request with the key"
kill -TERM "$server"
wait "$server" || fail "the server exits with $? after SIGTERM: $(cat "$work/log")"
server=
if "$troupe" health --server "$url" >/dev/null 2>&1; then fail "the health check passes without a server"; fi
checked "the variables of the image, first key, health check and stop${as:+, as user 65532}"

# The image itself.
if command -v docker >/dev/null && docker version --format '{{.Server.Version}}' >/dev/null 2>&1; then
	docker build -q -f deploy/Dockerfile -t troupe:check . >/dev/null || fail "docker build"
	checked "the image builds"
	docker volume create "troupe-check-$$" >/dev/null
	docker run --rm -v "troupe-check-$$:/var/lib/troupe" troupe:check keys create --data /var/lib/troupe/data --scope admin >/dev/null || fail "keys create in a container"
	container=$(docker run -d --health-interval 1s -v "troupe-check-$$:/var/lib/troupe" troupe:check)
	tries=0
	until [ "$(docker inspect -f '{{.State.Health.Status}}' "$container")" = healthy ]; do
		tries=$((tries + 1))
		[ "$tries" -lt 60 ] || fail "the container is not healthy: $(docker logs "$container" 2>&1)"
		sleep 1
	done
	docker stop "$container" >/dev/null
	code=$(docker inspect -f '{{.State.ExitCode}}' "$container")
	docker rm -v "$container" >/dev/null
	container=
	docker volume rm "troupe-check-$$" >/dev/null
	[ "$code" = 0 ] || fail "the container exits with $code"
	checked "a container gets healthy and stops"
else
	not_checked "docker build and a container: no Docker daemon answers"
fi

# The unit.
if command -v systemd-analyze >/dev/null; then
	sed "s|/usr/local/bin/troupe|$troupe|" deploy/troupe.service >"$work/troupe.service"
	if systemd-analyze verify --man=no "$work/troupe.service" >"$work/log" 2>&1 && ! grep -q "troupe.service" "$work/log"; then
		checked "the unit, by systemd-analyze verify"
	elif grep -q "troupe.service" "$work/log"; then
		fail "the unit: $(cat "$work/log")"
	else
		not_checked "the unit: systemd-analyze does not work here: $(head -n 1 "$work/log")"
	fi
else
	not_checked "the unit: systemd-analyze is missing"
fi
if [ -d /run/systemd/system ]; then
	not_checked "a start by systemd: it would change this machine; see deploy/README.md"
else
	not_checked "a start by systemd: it does not run here"
fi

[ "$missed" = 0 ] || echo "$missed not checked"
[ -z "$strict" ] || [ "$missed" = 0 ]
