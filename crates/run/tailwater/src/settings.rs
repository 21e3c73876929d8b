//! Where a command has its settings from: flags, over `TAILWATER_…` variables, over `[client]` of the configuration
//! file, over defaults.
//!
//! This goes by clap's own description of the commands: whatever takes a value can be set in all these ways. The flag
//! `--deadline-ms` of `tailwater produce` is `TAILWATER_PRODUCE_DEADLINE_MS`, and `deadline_ms` in `[client.produce]`.
//! What only says what to do this time, `--follow` and the like, is a flag and nothing else.
//!
//! What may not be beside something that goes over it does not count: with `--shard` no group from the file. What is
//! given in the same way is refused.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::builder::{Resettable, StyledStr};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Id};
use toml::{Table, Value};

/// Commands without any: a node has a configuration of its own, and the others are told everything when they are run.
const WITHOUT: [&str; 9] =
    ["serve", "init", "migrate", "bench", "demo", "demo-clusters", "load", "window", "completion"];

/// Options that mean nothing without each other, as ids. From a file, or a variable, one of them only counts beside the
/// other.
const TOGETHER: [[&str; 2]; 1] = [["dead_letter_queue", "max_receives"]];

/// What the command line comes to, with everything else that counts.
pub enum Parsed {
    /// The command is to be run.
    Run(ArgMatches),
    /// What it would be run with is to be shown: this.
    Print(Table),
}

/// Parses this process's command line. Ends the process where clap does: on errors in it, and after its help.
///
/// # Errors
/// What is wrong with the configuration file, or with a variable.
pub fn parse(command: &Command) -> anyhow::Result<Parsed> {
    // What is needed to know what else counts. Whatever is wrong is told when all of it does.
    let first = command.clone().ignore_errors(true).try_get_matches().ok();
    let client = first.as_ref().filter(|first| first.subcommand_name().is_some_and(has_settings));
    let Some(first) = client else {
        // Without any of them, but help names the variables.
        let command =
            CommandSettings { file: Table::new(), variables: Vec::new() }.fill(command.clone(), None)?;
        return Ok(Parsed::Run(command.get_matches()));
    };
    let file = first.get_one::<PathBuf>("config").map(|file| read(file)).transpose()?;
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let settings = CommandSettings { file: file.unwrap_or_default(), variables: variables.collect() };
    settings.check_named(command, first)?;
    let filled = settings.fill(command.clone(), Some(first))?;
    settings.check_variables(&filled, &path_of(first))?;
    // Where clap met an error, it did not come to the flags' defaults.
    if first.get_one("print_config") == Some(&true) {
        return Ok(Parsed::Print(printed(command, &optional(filled).get_matches())));
    }
    Ok(Parsed::Run(filled.get_matches()))
}

fn has_settings(command: &str) -> bool {
    !WITHOUT.contains(&command)
}

/// The `[client]` section of a file.
#[allow(clippy::disallowed_methods)] // A command reads its user's file, before it has any world.
fn read(file: &Path) -> anyhow::Result<Table> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the configuration file {} can't be read", file.display()))?;
    client_of(&text).with_context(|| format!("in the configuration file {}", file.display()))
}

fn client_of(text: &str) -> anyhow::Result<Table> {
    let mut all = tailwater_node::parse_toml(text)?;
    match all.remove("client") {
        None => Ok(Table::new()),
        Some(Value::Table(client)) => Ok(client),
        Some(_) => bail!("`client` is no section: write [client]"),
    }
}

/// Values from elsewhere than the command line.
struct CommandSettings {
    file: Table,
    variables: Vec<(String, String)>,
}

/// What one of them gives to an option.
struct Given {
    arg: Arg,
    from: String,
    is_variable: bool,
    values: Vec<String>,
}

impl CommandSettings {
    /// The commands with these values as their defaults. `first` is what the command line says by itself.
    fn fill(&self, command: Command, first: Option<&ArgMatches>) -> anyhow::Result<Command> {
        self.fill_below(command, first, &[], &self.file)
    }

    /// `first` is none where the command line is of another command.
    fn fill_below(
        &self,
        mut command: Command,
        first: Option<&ArgMatches>,
        path: &[String],
        table: &Table,
    ) -> anyhow::Result<Command> {
        let args: Vec<Arg> = command.get_arguments().filter(|arg| is_setting(arg)).cloned().collect();
        let below = command.get_subcommands().map(|sub| sub.get_name().to_owned());
        let below: Vec<String> = below.filter(|name| !path.is_empty() || has_settings(name)).collect();
        for (key, value) in table {
            let is_known = match value {
                Value::Table(_) => below.iter().any(|name| key_of(name) == *key),
                _ => args.iter().any(|arg| key_of_arg(arg) == *key),
            };
            ensure!(is_known, "{} has no {key}: `{} --help` lists what there is", section(path), words(path));
        }
        let mut given = Vec::new();
        for arg in &args {
            let key = key_of_arg(arg);
            let variable = variable_of(path, arg);
            let from_variable = variable.and_then(|name| self.variable(&name).map(|value| (name, value)));
            let (from, is_variable, values) = match (from_variable, table.get(&key)) {
                (Some((name, value)), _) => (name, true, vec![value.to_owned()]),
                (None, Some(value)) => (format!("{} {key}", section(path)), false, texts(value)?),
                (None, None) => continue,
            };
            check(arg, &values).with_context(|| from.clone())?;
            given.push(Given { arg: arg.clone(), from, is_variable, values });
        }
        let mut defaults = counting(&command, first, given)?;
        for arg in args {
            let values = defaults.iter().position(|(id, _)| id == arg.get_id());
            let values = values.map(|place| defaults.swap_remove(place).1);
            let variable = variable_of(path, &arg);
            command = command.mut_arg(arg.get_id().clone(), |mut arg| {
                if let Some(variable) = variable {
                    let told = |help: &StyledStr| StyledStr::from(format!("{help} [env: {variable}]"));
                    let (help, long_help) = (arg.get_help().map(told), arg.get_long_help().map(told));
                    arg = help.into_iter().fold(arg, Arg::help);
                    arg = long_help.into_iter().fold(arg, Arg::long_help);
                }
                match values {
                    Some(values) => arg.required(false).default_values(values),
                    None => arg,
                }
            });
        }
        let mut filled = Ok(());
        // All of them, or their order would change.
        let command = command.mut_subcommands(|sub| {
            let name = sub.get_name().to_owned();
            if filled.is_err() || !below.contains(&name) {
                return sub;
            }
            let below = match table.get(&key_of(&name)) {
                Some(Value::Table(below)) => below,
                _ => &Table::new(),
            };
            let first = first.and_then(ArgMatches::subcommand).filter(|(typed, _)| *typed == name);
            let first = first.map(|(_, matches)| matches);
            self.fill_below(sub.clone(), first, &[path, &[name]].concat(), below).unwrap_or_else(|error| {
                filled = Err(error);
                sub
            })
        });
        filled.map(|()| command)
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// What is wrong with a variable that an option names is told with the variable's name: clap names the option.
    fn check_named(&self, command: &Command, first: &ArgMatches) -> anyhow::Result<()> {
        for arg in command.get_arguments() {
            let named = arg.get_env().and_then(|name| name.to_str());
            let given = named.and_then(|name| self.variable(name).map(|value| (name, value)));
            if let Some((name, value)) = given.filter(|_| !is_typed(first, arg)) {
                check(arg, &[value.to_owned()]).with_context(|| name.to_owned())?;
            }
        }
        let below =
            first.subcommand().and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
        below.map_or(Ok(()), |(command, first)| self.check_named(command, first))
    }

    /// A variable that looks as if it were meant for the command at `path` is refused if the command knows none such.
    fn check_variables(&self, command: &Command, path: &[String]) -> anyhow::Result<()> {
        let mut leaf = command;
        for depth in 0..=path.len() {
            if let Some(name) = depth.checked_sub(1).map(|above| &path[above]) {
                let Some(below) = leaf.find_subcommand(name) else { return Ok(()) };
                leaf = below;
            }
            for arg in leaf.get_arguments().filter(|arg| is_setting(arg)) {
                let derived = variable(&path[..depth], &key_of_arg(arg));
                if let Some(other) = arg.get_env().filter(|named| **named != *derived)
                    && self.variable(&derived).is_some()
                {
                    let (long, other) = (arg.get_long().unwrap_or_default(), other.display());
                    bail!("{derived} does not count: the variable of --{long} is {other}");
                }
            }
        }
        if leaf.has_subcommands() {
            return Ok(());
        }
        let prefix = variable(path, "");
        for (name, _) in self.variables.iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let is_known =
                leaf.get_arguments().any(|arg| is_setting(arg) && variable(path, &key_of_arg(arg)) == *name);
            ensure!(is_known, "{name} names no option with a value: `{} --help` lists them", words(path));
        }
        Ok(())
    }
}

fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some()
        && arg.get_action().takes_values()
        && !arg.is_hide_set()
        && arg.get_id() != "config"
}

fn key_of(name: &str) -> String {
    name.replace('-', "_")
}

fn key_of_arg(arg: &Arg) -> String {
    key_of(arg.get_long().unwrap_or_default())
}

fn variable(path: &[String], key: &str) -> String {
    let words = path.iter().map(|name| key_of(name)).chain([key.to_owned()]);
    format!("TAILWATER_{}", words.collect::<Vec<_>>().join("_").to_uppercase())
}

/// The variable of an option; clap itself knows that of `--server`, which the commands without settings take, too.
fn variable_of(path: &[String], arg: &Arg) -> Option<String> {
    arg.get_env().is_none().then(|| variable(path, &key_of_arg(arg)))
}

fn section(path: &[String]) -> String {
    let below: String = path.iter().map(|name| format!(".{}", key_of(name))).collect();
    format!("[client{below}]")
}

fn words(path: &[String]) -> String {
    let words: Vec<&str> = std::iter::once("tailwater").chain(path.iter().map(String::as_str)).collect();
    words.join(" ")
}

/// The commands of the command line, outermost first.
fn path_of(matches: &ArgMatches) -> Vec<String> {
    let first = matches.subcommand();
    let below = std::iter::successors(first, |(_, matches)| matches.subcommand());
    below.map(|(name, _)| name.to_owned()).collect()
}

/// What a file says of an option, as it would be on the command line.
fn texts(value: &Value) -> anyhow::Result<Vec<String>> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(values) => Ok(values.iter().map(texts).collect::<Result<Vec<_>, _>>()?.concat()),
        Value::Table(_) => bail!("a section where a value should be"),
        simple => Ok(vec![simple.to_string()]),
    }
}

/// The values of these that count: defaults are beside everything for clap, so what may not be beside an option that
/// was typed is left out here, and then what comes from the file and may not be beside what a variable says.
///
/// # Errors
/// What comes from the file, or from variables, and may not be beside each other where this command is the one to be
/// run.
fn counting(
    command: &Command,
    first: Option<&ArgMatches>,
    given: Vec<Given>,
) -> anyhow::Result<Vec<(Id, Vec<String>)>> {
    let typed = command.get_arguments().filter(|arg| first.is_some_and(|first| is_typed(first, arg)));
    let mut over: Vec<Arg> = typed.cloned().collect();
    let mut counting = Vec::new();
    let (variables, file): (Vec<Given>, Vec<Given>) = given.into_iter().partition(|given| given.is_variable);
    for mut source in [variables, file] {
        source.retain(|given| !over.iter().any(|other| conflict(command, &given.arg, other)));
        for (at, given) in source.iter().enumerate().filter(|_| first.is_some()) {
            if let Some(other) = source[..at].iter().find(|other| conflict(command, &given.arg, &other.arg)) {
                bail!("{} can't be used together with {}", other.from, given.from);
            }
        }
        over.extend(source.iter().map(|given| given.arg.clone()));
        counting.extend(source.into_iter().map(|given| (given.arg.get_id().clone(), given.values)));
    }
    counting.retain(|(id, _)| {
        let mut both = TOGETHER.iter().filter(|both| both.contains(&id.as_str())).flatten();
        both.all(|one| over.iter().any(|arg| arg.get_id() == one))
    });
    Ok(counting)
}

/// Whether two options of a command may not be beside each other. Only one of them says so.
fn conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|named| named.get_id() == other.get_id())
    };
    names(one, other) || names(other, one)
}

/// Whether the command line has it.
fn is_typed(first: &ArgMatches, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    first.try_contains_id(id).is_ok() && first.value_source(id) == Some(ValueSource::CommandLine)
}

/// Whether an option takes these values.
fn check(arg: &Arg, values: &[String]) -> anyhow::Result<()> {
    let long = arg.get_long().unwrap_or_default().to_owned();
    // Alone: what it may not be beside, and what it has to be beside, clap would look for here.
    let alone = arg.clone().global(false).required(false);
    let alone = alone.conflicts_with(Resettable::<Id>::Reset).requires(Resettable::<Id>::Reset);
    let line = values.iter().map(|value| format!("--{long}={value}"));
    let command = Command::new("tailwater").no_binary_name(true).disable_help_flag(true).arg(alone);
    match command.try_get_matches_from(line) {
        Ok(_) => Ok(()),
        Err(error) => {
            let told = error.to_string();
            bail!("{}", told.lines().next().unwrap_or_default().trim_start_matches("error: "))
        }
    }
}

/// The same commands, which can do without what they have to be given.
fn optional(command: Command) -> Command {
    command.mut_args(|arg| arg.required(false)).mut_subcommands(optional)
}

/// What the command of a command line is run with, as a configuration file. `command` is as it is without any.
fn printed(command: &Command, matches: &ArgMatches) -> Table {
    let client = printed_below(command, matches);
    Table::from_iter([("client".to_owned(), Value::Table(client))])
}

fn printed_below(command: &Command, matches: &ArgMatches) -> Table {
    let mut table = Table::new();
    let settings = || command.get_arguments().filter(|arg| is_setting(arg));
    let raw = |arg: &Arg| matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
    for arg in settings() {
        let Some(values) = raw(arg) else { continue };
        // A default may be beside everything, but not when it is in a file.
        if values.clone().eq(arg.get_default_values().iter().map(|value| value.as_os_str()))
            && settings().any(|other| conflict(command, arg, other) && raw(other).is_some())
        {
            continue;
        }
        let mut values: Vec<Value> = values
            .map(|value| value.to_string_lossy().into_owned())
            .map(|text| match text.parse::<i64>() {
                Ok(number) if number.to_string() == text => Value::Integer(number),
                _ => Value::String(text),
            })
            .collect();
        let value = if values.len() == 1 { values.remove(0) } else { Value::Array(values) };
        table.insert(key_of_arg(arg), value);
    }
    if let Some((name, below)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        table.insert(key_of(name), Value::Table(printed_below(command, below)));
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn filled(file: &str, variables: &[(&str, &str)], first: Option<&ArgMatches>) -> anyhow::Result<Command> {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let settings = CommandSettings { file: client_of(file)?, variables };
        let command = settings.fill(Cli::command(), first)?;
        settings.check_variables(&command, &first.map_or(vec!["produce".to_owned()], path_of))?;
        Ok(command)
    }

    /// What the command of a line is run with, or what is wrong with file and variables.
    fn try_run_with(file: &str, variables: &[(&str, &str)], line: &[&str]) -> anyhow::Result<Table> {
        let line = [&["tailwater"], line].concat();
        let first = Cli::command().ignore_errors(true).try_get_matches_from(&line).expect("a command line");
        let matches = filled(file, variables, Some(&first))?.try_get_matches_from(line)?;
        let client = printed(&Cli::command(), &matches)["client"].clone();
        match path_of(&matches).iter().fold(client, |table, name| table[key_of(name)].clone()) {
            Value::Table(given) => Ok(given),
            other => panic!("{other}"),
        }
    }

    fn run_with(file: &str, variables: &[(&str, &str)], line: &[&str]) -> Table {
        try_run_with(file, variables, line).expect("it makes sense")
    }

    /// What `produce s` is run with.
    fn produce(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Table {
        run_with(file, variables, &[&["produce", "s"], flags].concat())
    }

    #[test]
    fn flags_go_over_variables_over_the_file_over_defaults() {
        let file = "[listen]\ndata = '127.0.0.1:1'\n[client.produce]\ncodec = 'zstd'\ndeadline_ms = 5\n";
        assert_eq!(produce("", &[], &[])["codec"], "none".into());
        assert_eq!(produce(file, &[], &[])["codec"], "zstd".into());
        assert_eq!(produce(file, &[], &[])["deadline_ms"], 5.into());
        let variables = [("TAILWATER_PRODUCE_CODEC", "lz4")];
        assert_eq!(produce(file, &variables, &[])["codec"], "lz4".into());
        assert_eq!(produce(file, &variables, &["--codec", "gzip"])["codec"], "gzip".into());
        assert_eq!(produce(file, &variables, &["--codec", "gzip"])["deadline_ms"], 5.into());
    }

    #[test]
    fn a_wrong_variable_that_an_option_names_is_told_with_its_name() {
        let command = Cli::command();
        for (name, value, line) in [
            ("TAILWATER_SERVER", "no-port", &["stream", "ls"][..]),
            ("TAILWATER_SERVER", "", &["produce", "s"]),
            ("TAILWATER_CA", "", &["cache", "stats", "--cell", "c"]),
        ] {
            let line = [&["tailwater"], line].concat();
            let first = command.clone().ignore_errors(true).try_get_matches_from(line).expect("a line");
            let variables = vec![(name.to_owned(), value.to_owned())];
            let settings = CommandSettings { file: Table::new(), variables };
            let error = settings.check_named(&command, &first).expect_err("it is wrong");
            assert!(format!("{error:#}").starts_with(&format!("{name}: ")), "{error:#}");
        }
    }

    #[test]
    fn a_variable_does_not_count_where_its_option_is_typed() {
        let command = Cli::command();
        let line = ["tailwater", "--server", "127.0.0.1:1", "stream", "ls"];
        let first = command.clone().ignore_errors(true).try_get_matches_from(line).expect("a line");
        let variables = vec![("TAILWATER_SERVER".to_owned(), "no-port".to_owned())];
        CommandSettings { file: Table::new(), variables }
            .check_named(&command, &first)
            .expect("it is not used");
    }

    #[test]
    fn a_flag_goes_over_what_it_may_not_be_beside_on_the_command_line() {
        let given = produce("[client.produce]\npartitioner = 'random'\n", &[], &["--shard", "3"]);
        assert_eq!(given["shard"], 3.into());
    }

    #[test]
    fn what_may_not_be_beside_what_goes_over_it_does_not_count() {
        let consume = &["consume", "s"][..];
        let of_shard = &["consume", "s", "--shard", "0"][..];
        let group = &[("TAILWATER_CONSUME_GROUP", "g")][..];
        for (file, variables, line, goes, stays) in [
            ("[client.consume]\ngroup = 'g'\n", &[][..], of_shard, "group", "shard"),
            ("", group, of_shard, "group", "shard"),
            (
                "[client.produce]\nshard = 3\n",
                &[],
                &["produce", "s", "--partitioner", "random"],
                "shard",
                "partitioner",
            ),
            (
                "[client.broadcast.listen]\ntoken_file = 't'\n",
                &[],
                &["broadcast", "listen", "--from", "now"],
                "token_file",
                "from",
            ),
            // A body and a flag are no settings; that they conflict is said by the flag.
            ("[client.queue.send]\nfile = 'f'\n", &[], &["queue", "send", "q", "body"], "file", "output"),
            (
                "[client.queue.receive]\nexec = 'cat'\n",
                &[],
                &["queue", "receive", "q", "--delete"],
                "exec",
                "output",
            ),
            // Variables go over the file, but not those that don't count.
            ("[client.consume]\nshard = [1]\n", group, consume, "shard", "group"),
            ("[client.consume]\nstats = 9\n", group, consume, "stats", "group"),
            ("[client.consume]\nstats = 9\n", group, of_shard, "group", "stats"),
        ] {
            let given = run_with(file, variables, line);
            assert!(!given.contains_key(goes) && given.contains_key(stays), "{line:?}: {given:?}");
        }
        // Elsewhere they count.
        let given = run_with("[client.queue.send]\nfile = 'f'\n", &[], &["queue", "send", "q"]);
        assert_eq!(given["file"], "f".into());
    }

    #[test]
    fn what_may_not_be_beside_each_other_is_refused_where_both_come_from_the_same_place() {
        let consume = &["consume", "s"][..];
        let file = "[client.consume]\ngroup = 'g'\nshard = [1]\n";
        let variables = &[("TAILWATER_CONSUME_SHARD", "1"), ("TAILWATER_CONSUME_GROUP", "g")][..];
        let in_file = ["[client.consume] shard", "[client.consume] group"];
        let in_variables = ["TAILWATER_CONSUME_SHARD", "TAILWATER_CONSUME_GROUP"];
        for (file, variables, named) in [(file, &[][..], in_file), ("", variables, in_variables)] {
            let error = try_run_with(file, variables, consume).expect_err("both are given");
            let error = format!("{error:#}");
            assert!(named.iter().all(|named| error.contains(named)), "{error}");
            // What is typed leaves one of them out.
            let given = run_with(file, variables, &[consume, &["--shard", "0"]].concat());
            assert_eq!((given.get("group"), &given["shard"]), (None, &0.into()));
            // And other commands don't ask.
            run_with(file, variables, &["produce", "s"]);
        }
        // A variable goes over the file.
        let given = run_with("[client.consume]\ngroup = 'g'\n", &variables[..1], consume);
        assert_eq!((given.get("group"), &given["shard"]), (None, &1.into()));
    }

    #[test]
    fn what_is_printed_has_no_default_beside_what_excludes_it() {
        for (line, goes) in [
            (&["produce", "s", "--shard", "3"][..], "partitioner"),
            (&["broadcast", "listen", "--token-file", "t"], "from"),
        ] {
            let given = run_with("", &[], line);
            assert!(!given.contains_key(goes), "{line:?}: {given:?}");
        }
        assert!(produce("", &[], &[]).contains_key("partitioner"));
        assert!(produce("[client.produce]\npartitioner = 'random'\n", &[], &[]).contains_key("partitioner"));
    }

    #[test]
    fn of_options_that_mean_nothing_without_each_other_one_from_a_file_counts_beside_the_other() {
        let create = &["queue", "create", "q"][..];
        let (both, most) =
            (["dead_letter_queue", "max_receives"], "[client.queue.create]\nmax_receives = 5\n");
        let target = "[client.queue.create]\ndead_letter_queue = 'dead'\n";
        let variable = &[("TAILWATER_QUEUE_CREATE_MAX_RECEIVES", "5")][..];
        let typed = &["queue", "create", "q", "--dead-letter-queue", "dead"][..];
        for (file, variables, line, count) in [
            (most, &[][..], create, 0),
            (target, &[], create, 0),
            ("", variable, create, 0),
            (most, &[], typed, 2),
            (target, variable, create, 2),
            // What is typed counts anyway, and is refused by the command.
            ("", &[], typed, 1),
        ] {
            let given = run_with(file, variables, line);
            let counted = both.iter().filter(|name| given.contains_key(**name)).count();
            assert_eq!(counted, count, "{file} {variables:?} {line:?}: {given:?}");
        }
        // They are what they are called.
        let create = Cli::command();
        let create = create.find_subcommand("queue").and_then(|queue| queue.find_subcommand("create"));
        let ids: Vec<&str> =
            create.expect("a command").get_arguments().map(|arg| arg.get_id().as_str()).collect();
        assert!(TOGETHER.iter().flatten().all(|id| ids.contains(id)), "{ids:?}");
    }

    #[test]
    fn a_variable_that_an_option_with_another_one_would_have_is_refused() {
        let endpoint = &[("TAILWATER_QUEUE_ENDPOINT", "http://127.0.0.1:1")][..];
        for line in [&["queue", "ls"][..], &["queue", "send", "q", "a"]] {
            let error = try_run_with("", endpoint, line).expect_err("it has another one");
            let named =
                "TAILWATER_QUEUE_ENDPOINT does not count: the variable of --endpoint is AWS_ENDPOINT_URL_SQS";
            assert!(format!("{error:#}").contains(named), "{error:#}");
        }
        // Other commands don't ask for it; a section has it.
        produce("", endpoint, &[]);
        run_with("[client.queue]\nendpoint = 'http://127.0.0.1:1'\n", &[], &["queue", "ls"]);
    }

    #[test]
    fn each_option_is_checked_without_those_that_it_needs() {
        fn check_all(command: &Command) -> usize {
            let args: Vec<&Arg> = command.get_arguments().filter(|arg| is_setting(arg)).collect();
            for arg in &args {
                // Taken or refused, but it does not panic.
                drop(check(arg, &["1".to_owned()]));
            }
            args.len() + command.get_subcommands().map(check_all).sum::<usize>()
        }
        assert!(check_all(&Cli::command()) > 50);
        let file = "[client.broadcast.listen]\nshare_listen = '127.0.0.1:0'\nstats = 5\n";
        filled(file, &[], None).expect("it makes sense");
    }

    #[test]
    fn no_command_has_an_option_that_hides_one_of_all_commands() {
        fn look(command: &Command, of_all: &[&str], path: &str) {
            for arg in command.get_arguments().filter(|arg| !arg.is_global_set()) {
                assert!(!of_all.contains(&arg.get_id().as_str()), "{path} --{}", arg.get_id());
            }
            for below in command.get_subcommands() {
                look(below, of_all, &format!("{path} {}", below.get_name()));
            }
        }
        let all = Cli::command();
        let of_all: Vec<&str> = all.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        assert!(of_all.len() > 5);
        all.get_subcommands().for_each(|command| look(command, &of_all, command.get_name()));
    }

    #[test]
    fn what_is_printed_is_what_it_was_printed_from() {
        let given = produce("", &[("TAILWATER_PRODUCE_KEY_DELIMITER", "=")], &["--deadline-ms", "7"]);
        assert_eq!(given["key_delimiter"], "=".into());
        let file = Table::from_iter([(
            "client".to_owned(),
            Value::Table(Table::from_iter([("produce".to_owned(), Value::Table(given.clone()))])),
        )]);
        assert_eq!(produce(&file.to_string(), &[], &[]), given);
    }

    #[test]
    fn what_no_command_knows_or_takes_is_refused_with_its_name() {
        for (file, variables, named) in [
            ("[client]\nservre = 'x'\n", &[][..], "[client] has no servre"),
            (
                "[client.produce]\ncodecs = 'zstd'\n",
                &[],
                "[client.produce] has no codecs: `tailwater produce",
            ),
            ("[client.stream.make]\nshards = 3\n", &[], "[client.stream] has no make"),
            ("[client.serve]\ndata = 'x'\n", &[], "[client] has no serve"),
            ("client = 3\n", &[], "write [client]"),
            (
                "[client.produce]\ndeadline_ms = 'soon'\n",
                &[],
                "[client.produce] deadline_ms: invalid value 'soon'",
            ),
            (
                "",
                &[("TAILWATER_PRODUCE_PARTITIONER", "any")],
                "TAILWATER_PRODUCE_PARTITIONER: invalid value 'any'",
            ),
            ("", &[("TAILWATER_PRODUCE_FILE", "x")], "TAILWATER_PRODUCE_FILE names no option"),
        ] {
            let error = filled(file, variables, None).expect_err(named);
            assert!(format!("{error:#}").contains(named), "{error:#}");
        }
    }

    #[test]
    fn several_values_are_a_list() {
        let given = run_with("[client.consume]\nshard = [1, 2]\n", &[], &["consume", "s"]);
        assert_eq!(given["shard"], Value::Array(vec![1.into(), 2.into()]));
    }

    #[test]
    fn no_two_options_share_a_variable_and_clap_finds_nothing_wrong() {
        fn variables(command: &Command, path: &[String], all: &mut Vec<String>) {
            let args = command.get_arguments().filter(|arg| is_setting(arg));
            all.extend(args.map(|arg| variable(path, &key_of_arg(arg))));
            for sub in command.get_subcommands().filter(|sub| has_settings(sub.get_name())) {
                variables(sub, &[path, &[sub.get_name().to_owned()]].concat(), all);
            }
        }
        let mut all = Vec::new();
        variables(&Cli::command(), &[], &mut all);
        all.sort();
        let count = all.len();
        all.dedup();
        assert!(count > 50 && all.len() == count, "{all:?}");
        filled("", &[], None).expect("nothing").debug_assert();
        optional(Cli::command()).debug_assert();
    }
}
