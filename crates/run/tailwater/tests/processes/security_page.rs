//! Every command of `docs/security.md`, one after the other, as it is written there.

use std::path::Path;
use std::process::Command;

use crate::sqs_clients::client;
use crate::support::kafka::need;
use crate::support::{Process, free_port, told, wait_for};

/// What the page's commands begin with. What else is in its blocks is a configuration.
const PROGRAMS: [&str; 4] = ["tailwater ", "kcat ", "curl ", "AWS_CA_BUNDLE="];
/// Those that go on until they are told to end.
const GO_ON: [&str; 3] = ["tailwater serve ", "tailwater cache serve ", "tailwater audit tail --follow"];

/// The commands in the page's blocks, those of several lines as one.
fn commands() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/security.md");
    let page = std::fs::read_to_string(page).expect("readable");
    let page = page.replace("\\\n", " ");
    let blocks = page.lines().filter_map(|line| line.strip_prefix("    "));
    let commands = blocks.filter(|line| PROGRAMS.iter().any(|program| line.starts_with(program)));
    commands.map(str::to_owned).collect()
}

#[test]
fn every_command_of_the_page_about_security_does_what_it_says() {
    need("kcat");
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let ports: [u16; 4] = std::array::from_fn(|_| free_port());
    let [admin, kafka, sqs, data] = ports.map(|port| format!("127.0.0.1:{port}"));
    std::fs::create_dir(path("bin")).expect("made");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tailwater"), path("bin/tailwater")).expect("linked");
    std::fs::write(path("password"), "correct horse\n").expect("written");
    let programs = std::env::var("PATH").unwrap_or_default();
    let programs = format!("{}:{}:{programs}", path("bin"), client("aws").join("bin").display());
    // The places that the page names, and where they are here.
    let here = |command: &str| {
        command
            .replace("/etc/tailwater", dir.path().to_str().expect("text"))
            .replace("FILE", &path("password"))
            .replace("localhost:9092", &kafka.replace("127.0.0.1", "localhost"))
            .replace("localhost:7421", &admin.replace("127.0.0.1", "localhost"))
            .replace("localhost:9324", &sqs.replace("127.0.0.1", "localhost"))
            .replace("10.0.0.6:7430", "127.0.0.1:0")
    };
    let asking = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(dir.path()).env("PATH", &programs);
        shell.env("TAILWATER_SERVER", format!("https://{admin}"));
        if !command.starts_with("tailwater init") {
            shell.env("TAILWATER_CONFIG", path("tailwater.toml"));
        }
        for (name, value) in
            [("ACCESS_KEY_ID", "any"), ("SECRET_ACCESS_KEY", "any"), ("DEFAULT_REGION", "any")]
        {
            shell.env(format!("AWS_{name}"), value);
        }
        shell
    };
    let run = |command: &str| {
        let (ok, out, err) = told(&mut asking(command), "");
        assert!(ok, "{command}\n{out}\n{err}");
        out
    };
    let all = commands();
    assert!(all.len() > 20, "only {} commands were found: {all:?}", all.len());
    for program in PROGRAMS.into_iter().chain(GO_ON) {
        assert!(all.iter().any(|command| command.starts_with(program)), "{program}");
    }
    let mut going_on = Vec::new();
    for command in &all {
        if !GO_ON.iter().any(|start| command.starts_with(start)) {
            run(&here(command));
            continue;
        }
        let mut shell = asking(&format!("exec {}", here(command)));
        if command.starts_with("tailwater serve") {
            // What the page says elsewhere: the AWS clients have no certificate, and without rules there is no audit.
            shell
                .env("TAILWATER_TLS__CLIENT_CERTIFICATES", "optional")
                .env("TAILWATER_ACCESS__RULES", "report");
            let ports = [("LISTEN__ADMIN", &admin), ("KAFKA__LISTEN", &kafka), ("SQS__LISTEN", &sqs)];
            for (name, address) in ports.into_iter().chain([("LISTEN__DATA", &data)]) {
                shell.env(format!("TAILWATER_{name}"), address);
            }
            shell.env("TAILWATER_BROADCAST__ENABLED", "false").env("TAILWATER_LISTEN__WINDOW", "false");
            shell.env("TAILWATER_DATA_CELL__CAPACITY_BYTES", (64 << 20).to_string());
        }
        let log = dir.path().join(format!("{}.log", going_on.len()));
        let mut process = Process::start(&mut shell, &log);
        if command.starts_with("tailwater serve") {
            wait_for("the node", || {
                assert!(process.is_running(), "it ended:\n{}", process.log());
                told(&mut asking("tailwater stream ls"), "").0.then_some(())
            });
            // Whom the page's commands name besides.
            for user in ["ops", "invoices"] {
                run(&here(&format!("tailwater user add {user} --password-file FILE")));
            }
        }
        going_on.push((command, process));
    }
    for (command, mut process) in going_on {
        assert!(process.is_running(), "{command}\n{}", process.log());
    }
}
