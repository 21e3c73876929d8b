//! How much memory this process may still take, before the kernel ends one.

use std::path::Path;

/// Where control groups are, of version 2.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes that are left, as far as the kernel says: of the machine, and of the control groups of version 2 that this
/// process is in.
#[allow(clippy::disallowed_methods)] // The machine's memory is what is asked for, whatever world the caller is in.
pub(crate) fn bytes_left() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let of_machine = of_machine(&read("/proc/meminfo"));
    let of_groups = of_groups(Path::new(GROUPS), &read("/proc/self/cgroup"));
    [of_machine, of_groups].into_iter().flatten().min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The least that is left in a group and those around it.
fn of_groups(groups: &Path, own: &str) -> Option<u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let own = groups.join(path);
    own.ancestors().take_while(|group| group.starts_with(groups)).filter_map(of_group).min()
}

/// What is left in a group; nothing is said of one without a bound.
#[allow(clippy::disallowed_methods)] // as above
fn of_group(group: &Path) -> Option<u64> {
    let read = |name| std::fs::read_to_string(group.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    let (max, current) = (number("memory.max")?, number("memory.current")?);
    // Pages of files count as taken, and go when there is no room.
    let stat = read("memory.stat").unwrap_or_default();
    let of_files = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        matches!(name, "active_file" | "inactive_file").then(|| bytes.parse::<u64>().ok())?
    });
    let taken = current.saturating_sub(of_files.fold(0, u64::saturating_add));
    Some(max.saturating_sub(taken))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // files that stand for the system's
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_has_left_is_what_it_can_free() {
        assert_eq!(of_machine("MemTotal:  9 kB\nMemAvailable:     7 kB\n"), Some(7 << 10));
        assert_eq!(of_machine("MemTotal:  9 kB\n"), None);
    }

    #[test]
    fn of_a_group_and_those_around_it_the_one_with_the_least_left_counts() {
        let groups = tempfile::tempdir().expect("a directory");
        let own = groups.path().join("outer/inner");
        std::fs::create_dir_all(&own).expect("made");
        let write =
            |group: &Path, name: &str, text: &str| std::fs::write(group.join(name), text).expect("written");
        let left = || of_groups(groups.path(), "1:cpu:/other\n0::/outer/inner\n");
        write(&own, "memory.max", "max\n");
        write(&own, "memory.current", "700\n");
        assert_eq!(left(), None, "no bound");
        write(&own, "memory.max", "1000\n");
        assert_eq!(left(), Some(300));
        write(&own, "memory.stat", "anon 500\nactive_file 30\ninactive_file 70\nshmem 9\n");
        assert_eq!(left(), Some(400), "pages of files go");
        write(&groups.path().join("outer"), "memory.max", "800\n");
        write(&groups.path().join("outer"), "memory.current", "900\n");
        assert_eq!(left(), Some(0));
        assert_eq!(of_groups(groups.path(), "1:cpu:/outer\n"), None, "version 1");
    }
}
