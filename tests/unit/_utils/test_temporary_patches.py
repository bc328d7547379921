import pytest

from tfdist._utils.temporary_patches import attributes_set


class Base:
    kept = "base"


class Owner(Base):
    @property
    def count(self):
        return 2


def test_the_attributes_of_an_object_are_as_before_after_an_error():
    owner = Base()
    with pytest.raises(AttributeError, match="absent"), attributes_set(owner, kept="own", new=1):
        _ = owner.absent
    assert vars(owner) == {}
    owner.kept = "own"
    with attributes_set(owner, kept="other", new=1):
        assert (owner.kept, owner.new) == ("other", 1)
    assert vars(owner) == {"kept": "own"}


def test_a_class_has_its_property_again_and_inherits_again():
    with attributes_set(Owner, count=3, kept="owner"):
        assert (Owner().count, Owner.kept, Base.kept) == (3, "owner", "base")
    assert (Owner().count, Owner.kept) == (2, "base")
    assert "kept" not in vars(Owner)
