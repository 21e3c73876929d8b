//! Documents name files that exist, and show programs that compile.

use std::path::Path;

use crate::support::tailwater;

#[test]
fn every_file_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut documents = vec![root.join("README.md"), root.join("spec/README.md")];
    for entry in std::fs::read_dir(root.join("docs")).expect("a folder") {
        let path = entry.expect("readable").path();
        documents.extend(path.extension().is_some_and(|extension| extension == "md").then_some(path));
    }
    let mut checked = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("readable");
        let words = text.split(|char: char| char.is_whitespace() || "`()[],;:*".contains(char));
        for word in words.filter(|word| word.starts_with("crates/") && !word.contains(['{', '}'])) {
            let named = word.trim_end_matches(['.', '/']);
            assert!(root.join(named).exists(), "{} names {named}", document.display());
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} names were found: does this test still look at the right words?");
}

/// A group's page names a crate's files from the crate's folder on.
#[test]
fn every_file_that_a_group_s_page_names_is_in_one_of_its_crates() {
    let groups = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut checked = 0;
    for group in std::fs::read_dir(groups).expect("a folder") {
        let group = group.expect("readable").path();
        let page = std::fs::read_to_string(group.join("README.md")).expect("each group has a page");
        let crates: Vec<_> =
            std::fs::read_dir(&group).expect("a folder").map(|of| of.expect("readable").path()).collect();
        for named in page.split('`').filter(|word| word.ends_with(".rs") && word.contains('/')) {
            assert!(crates.iter().any(|of| of.join(named).exists()), "{} names {named}", group.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} names were found: does this test still look at the right words?");
}

#[test]
fn the_program_in_the_readme_is_the_one_that_the_client_s_documentation_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("readable");
    let between = |text: &str, from: &str| -> Vec<String> {
        let start = text.find(from).expect("there is a program") + from.len();
        let code = text[start..].split("```").next().expect("it ends");
        code.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let readme = between(&read("README.md"), "```rust\n");
    // Lines with a hash are compiled and not shown.
    let source = read("crates/run/client/src/lib.rs").replace("//! ", "").replace("//!\n", "\n");
    let mut compiled = between(&source, "```no_run\n");
    compiled.retain(|line| !line.starts_with("# "));
    assert_eq!(readme, compiled);
    assert!(readme.len() <= 10, "{} lines", readme.len());
}

#[test]
fn every_key_of_the_configuration_is_described_with_its_default_and_no_other_is() {
    let output = tailwater().args(["serve", "--print-config"]).output().expect("it runs");
    let printed: toml::Table =
        toml::from_str(&String::from_utf8(output.stdout).expect("text")).expect("TOML");
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/configuration.md"));
    let text = text.expect("readable");
    let mut described = std::collections::BTreeMap::new();
    let mut sections: Vec<&str> = vec![""];
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            sections =
                heading.split('`').filter_map(|part| part.strip_prefix('[')?.strip_suffix(']')).collect();
        }
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (Some(key), Some(default)) = (cells.next(), cells.next()) else { continue };
        let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`')) else { continue };
        for (section, default) in sections.iter().zip(default.split(", ").cycle()) {
            described.insert((section.to_string(), key.to_owned()), default.trim_matches('`').to_owned());
        }
    }
    let mut defaults = std::collections::BTreeMap::new();
    for (key, value) in &printed {
        match value {
            toml::Value::Table(section) => add_section(&mut defaults, key, section),
            value => drop(defaults.insert((String::new(), key.clone()), value.to_string())),
        }
    }
    // What is not set is not printed.
    let tls = ["certificate", "key", "client_ca", "ca", "certificates"].map(|key| ("tls", key));
    let listeners = ["listen", "admin", "kafka", "sqs", "memcached", "broadcast", "broadcast.http"];
    let encrypted = listeners.map(|section| (section, "tls"));
    let others = [
        ("access", "audit"),
        ("access", "audit_stream"),
        ("data_cell", "ofi"),
        ("listen", "advertised_data"),
        ("metadata_cell", "ofi"),
        ("queues.cassandra", "password_file"),
    ];
    let jwt = ["issuer", "audience", "jwks", "ca"].map(|key| ("access.jwt", key));
    let engines = ["ledgers", "zookeeper"]
        .into_iter()
        .flat_map(|engine| ["password_file", "certificate", "key", "ca"].map(|key| (engine, key)));
    for (section, key) in others.into_iter().chain(jwt).chain(tls).chain(encrypted).chain(engines) {
        defaults.insert((section.to_owned(), key.to_owned()), "none".to_owned());
    }
    assert_eq!(described, defaults);
}

type Keys = std::collections::BTreeMap<(String, String), String>;

/// A section's keys, and those of the sections in it, which are called `outer.inner`.
fn add_section(keys: &mut Keys, section: &str, table: &toml::Table) {
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => add_section(keys, &format!("{section}.{name}"), inner),
            value => drop(keys.insert((section.to_owned(), name.clone()), value.to_string())),
        }
    }
}
