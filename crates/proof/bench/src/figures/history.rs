//! What git knows about a figure's code since the figure's build.
//!
//! A commit counts if it changed code in one of the figure's paths, and is not in `bench/results/ignored-commits`.
//! Tests and comments are no code. Through the renames of an ignored commit a path is followed to the name that it had
//! before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Commits that changed nothing that is measured, the newest first; lines with `#` are comments.
const IGNORED: &str = "bench/results/ignored-commits";
/// Tests beside the code and in folders of their own.
const TESTS: [&str; 2] = [":(exclude,glob)**/tests.rs", ":(exclude,glob)**/tests/**"];

/// A line that is neither empty nor a comment, as git's extended regular expression.
const CODE: &str = "^[[:space:]]*([^/[:space:]]|/[^/])";

/// How a figure stands to its code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// Nothing of its paths has changed since its build.
    Current,
    /// Something has.
    Older {
        /// How many commits did that.
        commits: usize,
        /// The first of them, the beginning of its hash and its day: later ones do not change it.
        first: String,
    },
    /// There is no history, or the build is not in it.
    Unknown,
}

/// A repository's history.
pub struct CodeHistory {
    root: PathBuf,
    ignored: Vec<String>,
}

impl CodeHistory {
    /// That of the repository at `root`.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let file = root.join(IGNORED);
        let text = std::fs::read_to_string(&file).with_context(|| format!("{IGNORED} can't be read"))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let ignored = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
        Ok(Self { root: root.to_owned(), ignored })
    }

    /// How a figure of `build` stands to `paths`, as they are called now.
    pub fn freshness(&self, build: &str, paths: &[String]) -> Freshness {
        self.later(build, paths).unwrap_or(Freshness::Unknown)
    }

    /// The commit that is checked out, in full.
    ///
    /// # Errors
    /// There is none, or the code differs from it.
    pub fn build(&self) -> anyhow::Result<String> {
        let head = self.git(&["rev-parse", "HEAD"]).context("git has no commit here: results name theirs")?;
        let changed = self.git(&["status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock"]);
        ensure!(
            changed.is_some_and(|changed| changed.is_empty()),
            "the code differs from the last commit: commit it, build, and measure that"
        );
        Ok(head.trim().to_owned())
    }

    fn later(&self, build: &str, paths: &[String]) -> Option<Freshness> {
        // Without its ancestors, as in a shallow clone, what came between is not known.
        self.git(&["merge-base", "--is-ancestor", build, "HEAD"])?;
        let mut commits = Vec::new();
        let mut paths: Vec<String> = paths.to_vec();
        let mut until = "HEAD".to_owned();
        for ignored in &self.ignored {
            // Renamed before the build, or somewhere else: the paths' names are those that it had.
            if self.git(&["merge-base", "--is-ancestor", ignored, &until]).is_none()
                || self.git(&["merge-base", "--is-ancestor", ignored, build]).is_some()
            {
                continue;
            }
            commits.extend(self.commits(&[&until, &format!("^{build}"), &format!("^{ignored}")], &paths)?);
            let renames = self.git(&["diff-tree", "-r", "-M", "--no-commit-id", "--name-status", ignored])?;
            let existed = |path: &str| self.git(&["cat-file", "-e", &format!("{ignored}^:{path}")]).is_some();
            paths = before(&renames, paths, existed);
            until = format!("{ignored}^");
        }
        commits.extend(self.commits(&[&until, &format!("^{build}")], &paths)?);
        Some(match commits.last() {
            None => Freshness::Current,
            Some(first) => Freshness::Older { commits: commits.len(), first: first.clone() },
        })
    }

    /// The commits in `range` that change code in `paths`, the newest first.
    fn commits(&self, range: &[&str], paths: &[String]) -> Option<Vec<String>> {
        let format = "--format=`%h` of %cs";
        let mut args = vec!["log", "--no-merges", "--abbrev=7", "-G", CODE, format];
        args.extend(range);
        args.push("--");
        args.extend(paths.iter().map(String::as_str));
        args.extend(TESTS);
        Some(self.git(&args)?.lines().map(str::to_owned).collect())
    }

    /// What git prints, if it succeeds.
    fn git(&self, args: &[&str]) -> Option<String> {
        let output = Command::new("git").arg("-C").arg(&self.root).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// What `paths` were called before a commit with `renames`, as `diff-tree --name-status` lists them, and those that
/// `existed` before it by the names that they have.
fn before(renames: &str, paths: Vec<String>, existed: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names = BTreeSet::new();
    for path in paths {
        for line in renames.lines().filter(|line| line.starts_with('R')) {
            let mut columns = line.split('\t').skip(1);
            let (Some(old), Some(new)) = (columns.next(), columns.next()) else { continue };
            let Some(rest) = new.strip_prefix(&path).filter(|rest| rest.is_empty() || rest.starts_with('/'))
            else {
                continue;
            };
            names.insert(old.strip_suffix(rest).unwrap_or(old).to_owned());
        }
        if existed(&path) {
            names.insert(path);
        }
    }
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository in which `file` is committed with each of the contents, under each of the names.
    struct Repository(tempfile::TempDir);

    impl Repository {
        fn new() -> Self {
            let repository = Self(tempfile::tempdir().expect("a directory"));
            repository.git(&["init", "--quiet"]);
            repository
        }

        fn git(&self, args: &[&str]) -> String {
            let mut command = Command::new("git");
            command.arg("-C").arg(self.0.path()).args([
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@example.com",
            ]);
            let output = command.args(args).output().expect("git runs");
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("text").trim().to_owned()
        }

        /// Commits `content` in `file`, and gives the commit.
        fn commit(&self, file: &str, content: &str) -> String {
            let path = self.0.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, content).expect("written");
            self.all(content)
        }

        fn all(&self, message: &str) -> String {
            self.git(&["add", "--all"]);
            self.git(&["commit", "--quiet", "-m", message]);
            self.git(&["rev-parse", "HEAD"])
        }

        fn freshness(&self, ignored: &[&str], build: &str, path: &str) -> Freshness {
            let ignored = ignored.iter().map(|&commit| commit.to_owned()).collect();
            CodeHistory { root: self.0.path().to_owned(), ignored }.freshness(build, &[path.to_owned()])
        }
    }

    fn commits(freshness: &Freshness) -> Option<usize> {
        match freshness {
            Freshness::Current => Some(0),
            Freshness::Older { commits, .. } => Some(*commits),
            Freshness::Unknown => None,
        }
    }

    #[test]
    fn a_change_of_the_code_counts_and_one_of_other_files_of_tests_or_of_comments_does_not() {
        let repository = Repository::new();
        repository.commit("a/src/lib.rs", "// why\nlet a = 1 / 2;\n");
        let build = repository.commit("a/src/lib.rs", "1\n");
        repository.commit("b/src/lib.rs", "2");
        repository.commit("a/src/tests.rs", "3");
        repository.commit("a/src/core/tests/x.rs", "4");
        repository.commit("a/src/lib.rs", "1\n\n    //! A comment.\n");
        assert_eq!(repository.freshness(&[], &build, "a/src"), Freshness::Current);
        let first = repository.commit("a/src/lib.rs", "5");
        repository.commit("a/src/core.rs", "6");
        let Freshness::Older { commits, first: named } = repository.freshness(&[], &build, "a/src") else {
            panic!("two commits changed it");
        };
        assert_eq!(commits, 2);
        assert!(named.starts_with(&format!("`{}` of ", &first[..7])), "{named}");
    }

    #[test]
    fn a_folder_is_followed_through_the_renames_of_an_ignored_commit_into_a_group_of_its_old_name() {
        let repository = Repository::new();
        repository.commit("queue/src/core.rs", "core\n1\n2\n3\n");
        repository.commit("sqs/src/lib.rs", "sqs\n1\n2\n3\n");
        let build = repository.commit("queue/src/lib.rs", "lib\n1\n2\n3\n");
        repository.commit("queue/src/lib.rs", "lib\n1\n2\n3\n4\n");
        let folder = repository.0.path();
        std::fs::rename(folder.join("queue"), folder.join("inner")).expect("moved");
        std::fs::create_dir(folder.join("queue")).expect("made");
        std::fs::rename(folder.join("inner"), folder.join("queue/queue")).expect("moved");
        std::fs::rename(folder.join("sqs"), folder.join("queue/sqs")).expect("moved");
        let moved = repository.all("moved");
        repository.commit("queue/sqs/src/lib.rs", "another crate");
        assert_eq!(commits(&repository.freshness(&[&moved], &build, "queue/queue/src")), Some(1));
        repository.commit("queue/queue/src/lib.rs", "changed");
        assert_eq!(commits(&repository.freshness(&[&moved], &build, "queue/queue/src")), Some(2));
        assert_eq!(commits(&repository.freshness(&[&moved], &moved, "queue/queue/src")), Some(1));
        // A file of the folder gets another name, and the folder keeps its own.
        std::fs::rename(folder.join("queue/queue/src/core.rs"), folder.join("queue/queue/src/main.rs"))
            .expect("moved");
        let renamed = repository.all("renamed");
        assert_eq!(commits(&repository.freshness(&[&renamed, &moved], &build, "queue/queue/src")), Some(2));
        assert_eq!(
            commits(&repository.freshness(&[&renamed, &moved], &build, "queue/queue/src/main.rs")),
            Some(0)
        );
        // Without being told, the move itself is a change, and what was before is not found.
        assert_eq!(commits(&repository.freshness(&[], &build, "queue/queue/src")), Some(2));
    }

    #[test]
    fn without_a_history_or_with_a_build_that_is_not_in_it_the_age_is_unknown() {
        let repository = Repository::new();
        repository.commit("a/src/lib.rs", "1");
        let absent = "0123456789012345678901234567890123456789";
        assert_eq!(repository.freshness(&[], absent, "a/src"), Freshness::Unknown);
        let nothing = tempfile::tempdir().expect("a directory");
        let history = CodeHistory { root: nothing.path().to_owned(), ignored: Vec::new() };
        assert_eq!(history.freshness(absent, &["a".to_owned()]), Freshness::Unknown);
    }
}
