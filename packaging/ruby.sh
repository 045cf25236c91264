# shellcheck shell=bash
# The gems: one with the command for this platform, and one without it. ./package sources this file.
# shellcheck disable=SC2154 # ./package sets the variables.

gems() {
    local stage=$scratch/gem
    mkdir -p "$stage"
    cp -R clients/ruby/{lib,sig,README.md,leasehold.gemspec} LICENSE-MIT LICENSE-APACHE "$stage"
    build_gem "$stage"
    mkdir "$stage/libexec"
    cp "$scratch/leasehold" "$stage/libexec"
    cp "$scratch/share/THIRD-PARTY.txt" "$stage"
    # RubyGems installs it where it fits, and otherwise the gem without the command.
    build_gem "$stage"
}

# build_gem FOLDER
build_gem() {
    (cd "$1" && gem build --strict leasehold.gemspec >"$scratch/gem.log" 2>&1 && mv ./*.gem "$out") ||
        fail "gem build: $(cat "$scratch/gem.log")"
}

try_gems() {
    local platform_gem
    platform_gem=$(echo "$out"/leasehold-"$version"-*.gem)
    GEM_HOME=$scratch/gems gem install --quiet --local --no-document "$platform_gem" >/dev/null
    # This is a fresh environment without the command on the PATH.
    in_fresh_folder GEM_HOME="$scratch/gems" "$(command -v ruby)" - <<'RUBY'
require "leasehold"

Leasehold::Locker.new("sqlite:locks.db").lock("deploy/prod", ttl: 30, wait: 60) do |guard|
  guard.check!
  puts "held with token #{guard.token}"
end
RUBY
}
