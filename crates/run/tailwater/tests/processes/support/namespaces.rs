//! Tests that need namespaces of their own, which anybody may make where the kernel permits user namespaces.

use std::process::{Child, Command, Stdio};

use super::{Place, wait_for};

/// Set where a test runs a second time, in namespaces of its own.
const OWN: &str = "TEST_IN_NAMESPACES";

/// Whether this is that second time.
pub fn are_own() -> bool {
    std::env::var_os(OWN).is_some()
}

/// Runs a test again, in the namespaces that `unshare FLAGS` makes; between two flags is a space. Fails as it does; an
/// error says why none can be made, and what to do.
pub fn run_again(flags: &str, test: &str) -> Result<(), String> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(flags.split(' '));
        command
    };
    let tried = unshare().arg("true").output().expect("unshare is in util-linux: apt-get install util-linux");
    if !tried.status.success() {
        return Err(format!(
            "unshare {flags}: {}Run the tests as root, or allow user namespaces: sysctl -w \
             kernel.unprivileged_userns_clone=1 user.max_user_namespaces=1000 \
             kernel.apparmor_restrict_unprivileged_userns=0, as far as they are there",
            String::from_utf8_lossy(&tried.stderr)
        ));
    }
    let again = unshare()
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture"])
        .env(OWN, "1")
        .status()
        .expect("it starts");
    assert!(again.success(), "it failed in namespaces of its own, see above");
    Ok(())
}

/// Hosts in network namespaces of their own, with a router between them in the namespace that this process is in, which
/// has to be its own. Host `n` is 10.0.n.2.
pub struct Network {
    hosts: Vec<Host>,
}

/// A network namespace, which is there as long as this process in it.
struct Host(Child);

impl Network {
    /// Makes so many; an error says what the kernel does not permit.
    pub fn of(hosts: usize) -> Result<Self, String> {
        assert!(are_own(), "the routes of this machine are nobody's to change");
        let forwards = "/proc/sys/net/ipv4/ip_forward";
        std::fs::write(forwards, "1").map_err(|error| format!("{forwards}: {error}"))?;
        ip(&["link", "set", "lo", "up"])?;
        let mut network = Self { hosts: Vec::new() };
        for host in 0..hosts {
            network.hosts.push(Host::start()?);
            network.connect(host)?;
        }
        Ok(network)
    }

    fn connect(&self, host: usize) -> Result<(), String> {
        let (link, router, own) = (format!("host{host}"), format!("10.0.{host}.1"), address(host));
        let namespace = self.hosts[host].0.id().to_string();
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
        ip(&["addr", "add", &format!("{router}/24"), "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        let inside = self.place(host).starter;
        let within =
            |args: &[&str]| run(&inside.iter().map(String::as_str).chain(args.to_vec()).collect::<Vec<_>>());
        within(&["ip", "link", "set", "lo", "up"])?;
        within(&["ip", "addr", "add", &format!("{own}/24"), "dev", "eth0"])?;
        within(&["ip", "link", "set", "eth0", "up"])?;
        within(&["ip", "route", "add", "default", "via", &router])
    }

    /// Where a host's programs run.
    pub fn place(&self, host: usize) -> Place {
        let namespace = self.hosts[host].0.id().to_string();
        let starter = ["nsenter", "--net", "--target", &namespace].map(str::to_owned).to_vec();
        Place { host: address(host), starter }
    }

    /// From now on the router drops what one sends to the other, and says nothing.
    pub fn cut(&self, one: usize, other: usize) {
        self.rules("add", one, other);
    }

    /// Undoes it.
    pub fn heal(&self, one: usize, other: usize) {
        self.rules("del", one, other);
    }

    fn rules(&self, what: &str, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let (from, to) = (address(from), address(to));
            ip(&["rule", what, "from", &from, "to", &to, "blackhole"]).expect("the router is ours");
        }
    }
}

impl Host {
    fn start() -> Result<Self, String> {
        // It ends with its input, which is ours, so that it never outlives the test.
        let mut command = Command::new("unshare");
        let child = command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut host = Self(child.map_err(|error| format!("unshare: {error}"))?);
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let (own, theirs) = (namespace("self"), host.0.id().to_string());
        wait_for("a network namespace", || {
            if host.0.try_wait().expect("it is ours").is_some() {
                return Some(Err("unshare --net is not permitted".to_owned()));
            }
            (namespace(&theirs)? != *own.as_ref()?).then_some(Ok(()))
        })?;
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address(host: usize) -> String {
    format!("10.0.{host}.2")
}

fn ip(args: &[&str]) -> Result<(), String> {
    run(&[&["ip"], args].concat())
}

fn run(words: &[&str]) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", words.join(" "));
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| failed(&error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(&String::from_utf8_lossy(&output.stderr).trim())),
    }
}
