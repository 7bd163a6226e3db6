//! The groups whose members are still arriving.
//!
//! A group is opened with its size and an *issue*: how often its work was handed out. What arrives for a group that is
//! not open, for an issue that was replaced, or a second time, is ignored and counted. A group leaves the book when it
//! is complete or closed, so the book does not grow with a run's length.

use std::collections::BTreeMap;

/// Why an arrival was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IgnoredArrival {
    /// The group is complete, was closed, or never was open.
    NotOpen,
    /// The group's work was handed out anew.
    Reissued,
    /// The member was there.
    Duplicate,
    /// The group has no member of that index.
    NotAMember,
}

/// What became of an arrival.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival<T> {
    /// The group waits for more.
    Waiting,
    /// The group is complete: its members in order. It is no longer in the book.
    Complete(Vec<T>),
    /// Nothing changed, except for the count.
    Ignored(IgnoredArrival),
}

struct OpenGroup<T> {
    issue: u32,
    members: Vec<Option<T>>,
}

/// The groups that are open, and how many arrivals were ignored.
pub struct GroupBook<K, T> {
    open: BTreeMap<K, OpenGroup<T>>,
    ignored: BTreeMap<IgnoredArrival, u64>,
}

impl<K, T> Default for GroupBook<K, T> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), ignored: BTreeMap::new() }
    }
}

impl<K: Ord, T> GroupBook<K, T> {
    /// Opens a group of `size` members; where it was open, its work counts as handed out anew and what had arrived is
    /// dropped.
    pub fn open(&mut self, group: K, issue: u32, size: usize) {
        let members = std::iter::repeat_with(|| None).take(size).collect();
        self.open.insert(group, OpenGroup { issue, members });
    }

    /// Takes a member in.
    pub fn arrive(&mut self, group: K, issue: u32, member: usize, value: T) -> Arrival<T> {
        let ignored = match self.open.get_mut(&group) {
            None => IgnoredArrival::NotOpen,
            Some(open) if open.issue != issue => IgnoredArrival::Reissued,
            Some(open) => match open.members.get_mut(member) {
                None => IgnoredArrival::NotAMember,
                Some(Some(_)) => IgnoredArrival::Duplicate,
                Some(place) => {
                    *place = Some(value);
                    if open.members.iter().any(Option::is_none) {
                        return Arrival::Waiting;
                    }
                    let complete = self.open.remove(&group).map_or_else(Vec::new, |open| open.members);
                    return Arrival::Complete(complete.into_iter().flatten().collect());
                }
            },
        };
        *self.ignored.entry(ignored).or_default() += 1;
        Arrival::Ignored(ignored)
    }

    /// Closes a group: its members so far, in order; nothing where it is not open.
    pub fn close(&mut self, group: &K) -> Vec<T> {
        self.open.remove(group).map_or_else(Vec::new, |open| open.members.into_iter().flatten().collect())
    }

    /// Keeps only the groups that pass.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.open.retain(|group, _| keep(group));
    }

    /// How many groups are open.
    pub fn open_groups(&self) -> usize {
        self.open.len()
    }

    /// How many arrivals were ignored, by reason.
    pub fn ignored(&self) -> &BTreeMap<IgnoredArrival, u64> {
        &self.ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_group_is_complete_when_all_members_are_there_in_whatever_order() {
        let mut book = GroupBook::default();
        book.open(7, 0, 3);
        assert_eq!(book.arrive(7, 0, 2, "c"), Arrival::Waiting);
        assert_eq!(book.arrive(7, 0, 0, "a"), Arrival::Waiting);
        assert_eq!(book.arrive(7, 0, 1, "b"), Arrival::Complete(vec!["a", "b", "c"]));
        assert_eq!(book.open_groups(), 0);
    }

    #[test]
    fn an_arrival_after_the_group_was_closed_or_reissued_is_ignored_and_counted() {
        let mut book = GroupBook::default();
        book.open(7, 0, 2);
        assert_eq!(book.arrive(7, 0, 0, "old"), Arrival::Waiting);
        book.open(7, 1, 2);
        assert_eq!(book.arrive(7, 0, 1, "late"), Arrival::Ignored(IgnoredArrival::Reissued));
        assert_eq!(book.arrive(7, 1, 0, "new"), Arrival::Waiting);
        assert_eq!(book.arrive(7, 1, 0, "twice"), Arrival::Ignored(IgnoredArrival::Duplicate));
        assert_eq!(book.arrive(7, 1, 9, "odd"), Arrival::Ignored(IgnoredArrival::NotAMember));
        assert_eq!(book.close(&7), vec!["new"]);
        assert_eq!(book.arrive(7, 1, 1, "late"), Arrival::Ignored(IgnoredArrival::NotOpen));
        assert_eq!(book.ignored().values().copied().collect::<Vec<_>>(), vec![1, 1, 1, 1]);
    }

    proptest! {
        #[test]
        fn no_member_is_counted_twice_whatever_arrives(
            arrivals in prop::collection::vec((0u64..3, 0u32..2, 0usize..4), 0..60),
        ) {
            let mut book = GroupBook::default();
            (0..3).for_each(|group| book.open(group, 1, 3));
            let (mut taken, mut ignored) = (0u64, 0u64);
            let mut completed = Vec::new();
            for &(group, issue, member) in &arrivals {
                match book.arrive(group, issue, member, (group, issue, member)) {
                    Arrival::Waiting => taken += 1,
                    Arrival::Complete(members) => { taken += 1; completed.extend(members) }
                    Arrival::Ignored(_) => ignored += 1,
                }
            }
            prop_assert_eq!(taken + ignored, arrivals.len() as u64);
            prop_assert_eq!(ignored, book.ignored().values().sum::<u64>());
            let mut distinct = completed.clone();
            distinct.sort();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), completed.len());
            prop_assert!(completed.iter().all(|&(_, issue, member)| issue == 1 && member < 3));
        }
    }
}
